"""A node that lies: it has its own NATS user, speaks on its own subjects, and offers room for no job.

What it sends has numbers out of every range, runs and ends of jobs that were never placed on it, and measurements of
things that cannot be. `lies` is pure: a seed gives the same.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import nats
from msgspec import Struct
from nats.aio.client import Client as Nats
from nats.errors import Error as NatsError

from weft.credentials import Credentials, inbox_prefix

NODE = "rogue"
POOL = "default"
BETWEEN_SECONDS = 0.15
ANSWER_SECONDS_MAX = 1.0
CONNECT_SECONDS_MAX = 3
HUGE = (-1, -(2**70), 2**31, 2**40, 2**63, 2**64, 2**70, 10**300)
HUGE_FLOATS = (-1.0, 1e19, 1e300, 1e308, -1e308)


class Lie(Struct, frozen=True, kw_only=True):
    what: str
    user: str  # executor or telemetry
    subject: str
    body: dict[str, Any]


def lies(seed: int, jobs: Callable[[], Sequence[str]]) -> Iterator[Lie]:
    """Without end. `jobs` gives the ids of others' jobs, the newest last, whenever one is lied about."""
    drawn = random.Random(f"lies {seed}")
    for number in range(1, 2**31):
        what = drawn.choice(tuple(_LIES))
        lie = _LIES[what](drawn, number, _job(drawn, jobs()))
        user = "telemetry" if lie[0].startswith("weft.telemetry") else "executor"
        yield Lie(what=what, user=user, subject=lie[0], body=lie[1])
        # Between two lies it reports as any node does, so that it is one.
        yield Lie(what="report", user="executor", subject=f"weft.sync.{POOL}.{NODE}", body=_report(number))


def _job(drawn: random.Random, jobs: Sequence[str]) -> str:
    """Mostly a young one, which is not over yet."""
    return jobs[max(0, len(jobs) - 1 - int(drawn.random() ** 2 * 20))] if jobs else "j-none"


Made = tuple[str, dict[str, Any]]


def _report(number: int, *runs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    usual = {"node_id": NODE, "pool": POOL, "address": "127.0.0.1", "boot_id": "rogue", "incarnation": 1, "seq": number}
    capacity = {"cpus": 0.001, "memory": 1 << 20, "gpus": []}
    return {**usual, "capacity": capacity, "runs": list(runs), **fields}


def _sync(number: int, *runs: dict[str, Any], **fields: Any) -> Made:
    return f"weft.sync.{POOL}.{NODE}", _report(number, *runs, **fields)


def _run(drawn: random.Random, job: str, **fields: Any) -> dict[str, Any]:
    return {"job_id": job, "epoch": drawn.randrange(3), "rank": drawn.randrange(2), "state": "running", **fields}


def _number_of_report(drawn: random.Random, number: int, job: str) -> Made:
    return _sync(number, **{drawn.choice(("seq", "incarnation")): drawn.choice(HUGE)})


def _capacity(drawn: random.Random, number: int, job: str) -> Made:
    gpu = {"index": drawn.choice(HUGE), "uuid": "GPU-rogue", "model": "Rogue", "memory": drawn.choice(HUGE)}
    made: dict[str, Any] = {"cpus": 0.001, "memory": 1 << 20, "gpus": []}
    wrong: dict[str, Any] = {"cpus": -1e308, "memory": drawn.choice(HUGE), "gpus": [gpu]}
    field = drawn.choice(tuple(wrong))
    return _sync(number, capacity={**made, field: wrong[field]})


def _number_of_run(drawn: random.Random, number: int, job: str) -> Made:
    field = drawn.choice(("epoch", "rank", "started_at", "gpus"))
    value: Any = [drawn.choice(HUGE)] if field == "gpus" else drawn.choice(HUGE)
    return _sync(number, _run(drawn, job, **{field: value}))


def _stray(drawn: random.Random, number: int, job: str) -> Made:
    return _sync(number, _run(drawn, job, state=drawn.choice(("starting", "running")), gpus=[0, 1]))


def _end(drawn: random.Random, number: int, job: str) -> Made:
    reason = drawn.choice(("exit", "oom", "start-failed", "lost", "fenced"))
    code = drawn.choice((0, 1, *HUGE))
    return _sync(number, _run(drawn, job, state="exited", reason=reason, exit_code=code, ended_at=1.0))


def _progress(drawn: random.Random, number: int, job: str) -> Made:
    value = drawn.choice(HUGE_FLOATS)
    pace = {"window_seconds": value, "steps": drawn.choice(HUGE), "steps_rate": value, "step_seconds": value}
    run = {"job_id": job, "epoch": drawn.choice((0, 1, 2**70)), "rank": 0, "progress": {"step": value, "steps": value}}
    return f"weft.progress.{NODE}", {"node_id": NODE, "runs": [{**run, "at": value, "pace": pace}]}


def _telemetry(drawn: random.Random, number: int, job: str) -> Made:
    value = drawn.choice(HUGE_FLOATS)
    gpu = {"index": drawn.choice(HUGE), "uuid": "GPU-rogue", "model": "Rogue", "utilisation": value}
    gpu |= {"memory_used": drawn.choice(HUGE), "xid_errors": {str(2**70): 1}}
    run = {
        "job_id": job,
        "epoch": drawn.choice((0, 2**70)),
        "rank": drawn.choice(HUGE),
        "source": "x",
        "cpus_used": value,
    }
    host = {"cpus": value, "memory_total": drawn.choice(HUGE), "memory_used": 0}
    body = {"node_id": NODE, "pool": POOL, "at": value, "host": host, "gpus": [gpu], "runs": [run]}
    return f"weft.telemetry.{NODE}", {**body, "boot": "rogue", "seq": drawn.choice((number, *HUGE))}


_LIES: dict[str, Callable[[random.Random, int, str], Made]] = {
    "number of a report": _number_of_report,
    "capacity": _capacity,
    "number of a run": _number_of_run,
    "stray": _stray,
    "end": _end,
    "progress": _progress,
    "telemetry": _telemetry,
}


class Rogue:
    """`said` counts its lies by what they are about."""

    def __init__(self, url: str, credentials: Credentials, seed: int, jobs: Callable[[], Sequence[str]]) -> None:
        self.said: Counter[str] = Counter()
        self._url = url
        self._credentials = credentials
        self._lies = lies(seed, jobs)

    async def lie(self) -> None:
        """Until it is cancelled, also while NATS is away."""
        clients = {user: await self._connect(f"{user}-{NODE}") for user in ("executor", "telemetry")}
        try:
            for lie in self._lies:
                payload = json.dumps(lie.body).encode()
                with suppress(NatsError, TimeoutError, OSError):
                    if lie.subject.startswith("weft.sync"):
                        await clients[lie.user].request(lie.subject, payload, timeout=ANSWER_SECONDS_MAX)
                    else:
                        await clients[lie.user].publish(lie.subject, payload)
                    self.said[lie.what] += 1
                await asyncio.sleep(BETWEEN_SECONDS)
        finally:
            for client in clients.values():
                with suppress(NatsError, TimeoutError, OSError):
                    await client.close()

    async def _connect(self, user: str) -> Nats:
        return await nats.connect(
            self._url.split(","),
            user=user,
            password=self._credentials.nats_password(user),
            inbox_prefix=inbox_prefix(user).encode(),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,
            connect_timeout=CONNECT_SECONDS_MAX,
            error_cb=_unheard,
        )


async def _unheard(error: Exception) -> None:
    """Of a server that is away the next lie shows it."""
