"""A client in a process of its own: requests at times drawn beforehand, sent whether those before are answered or not.

    python -m tests.bench.serving.client PLAN OUT

PLAN is a file of JSON as `Plan`. OUT gets a line for each request: when it was due (seconds since `begins_at`), how
long its first byte took (seconds from then, -1 if none came), and the status (0: no answer).
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import aiohttp
import msgspec
from msgspec import Struct

CONNECTIONS_MAX = 512


class Plan(Struct, frozen=True, kw_only=True):
    """`steps`: from each second on, that many requests a second, until the next; the last one ends at `seconds`.
    `begins_at`: by the machine's own clock."""

    url: str
    token: str
    steps: tuple[tuple[float, float], ...]
    seconds: float
    seed: int
    begins_at: float
    timeout_s: float = 30.0
    tokens: int = 8


class Answer(Struct, frozen=True):
    due: float
    first_s: float
    status: int


def dues(plan: Plan) -> list[float]:
    """A Poisson process of that rate."""
    dice = Random(plan.seed)
    found: list[float] = []
    ends = [*(at for at, _ in plan.steps[1:]), plan.seconds]
    for (at, rate), end in zip(plan.steps, ends, strict=True):
        while rate > 0:
            at += dice.expovariate(rate)
            if at >= end:
                break
            found.append(at)
    return found


async def send(plan: Plan) -> list[Answer]:
    bounds = aiohttp.ClientTimeout(total=plan.timeout_s)
    headers = {"Authorization": f"Bearer {plan.token}"}
    connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX)
    answers: list[Answer] = []
    async with (
        aiohttp.ClientSession(connector=connector, timeout=bounds, headers=headers) as session,
        asyncio.TaskGroup() as tasks,
    ):
        for due in dues(plan):
            await asyncio.sleep(max(0.0, plan.begins_at + due - time.time()))
            tasks.create_task(_one(session, plan, due, answers))
    return answers


async def _one(session: aiohttp.ClientSession, plan: Plan, due: float, answers: list[Answer]) -> None:
    """Late sending counts: the time is from when the request was due."""
    try:
        async with session.post(plan.url, json={"tokens": plan.tokens}) as response:
            first_s = time.time() - plan.begins_at - due
            await response.read()
            status = response.status
    except (aiohttp.ClientError, TimeoutError, OSError):
        first_s, status = -1.0, 0
    answers.append(Answer(due, first_s, status))


def read(path: Path) -> list[Answer]:
    rows = (line.split() for line in path.read_text().splitlines())
    return sorted((Answer(float(due), float(first), int(status)) for due, first, status in rows), key=_due)


def _due(answer: Answer) -> float:
    return answer.due


def main(arguments: Sequence[str]) -> None:
    plan = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=Plan)
    answers = asyncio.run(send(plan))
    text = "".join(f"{answer.due:.4f} {answer.first_s:.4f} {answer.status}\n" for answer in answers)
    Path(arguments[1]).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
