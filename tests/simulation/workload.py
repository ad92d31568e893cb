"""What users do: submit jobs of all behaviours, send them again, cancel, requeue and prioritise them, drain nodes."""

import asyncio
import random
from typing import Any

import msgspec

from libs.bus import BusError
from libs.domain.checkpoints import CHECKPOINTS_LABEL
from libs.messages.asks import AskKind, AskStored, SubmitAnswered
from libs.store import StoreError
from tests.simulation.history import History
from tests.simulation.machine import DO, Plan
from tests.simulation.network import SimBus
from tests.simulation.witness import Witness

SUBMIT = "weft.submit"
TOKEN = "weft_" + "s" * 40
AGAIN_SECONDS = 1.0


def job(dice: random.Random, number: int, *, ranks_max: int, gpus_max: int) -> dict[str, Any]:
    """A specification, as a user would send it."""
    ranks = dice.choice([1, 1, 1, dice.randint(2, max(2, ranks_max))])
    gpus = dice.choice([0, 1, 1, 1, 2]) if ranks == 1 else dice.choice([0, 1, 1])
    retries = dice.choice([0, 0, 1, 3])
    replicas = {"want": ranks, "min": dice.randint(1, ranks)} if dice.random() < 0.5 else {"want": ranks}
    spec: dict[str, Any] = {
        "name": f"job-{number}",
        "kind": dice.choice(["training", "batch"]),
        "command": ["true"],
        "env": {DO: msgspec.json.encode(_plan(dice, retries)).decode()},
        "roles": {
            "worker": {"replicas": replicas, "gpus": min(gpus, gpus_max), "cpus": 1.0, "memory": "1GiB"},
        },
        "priority": dice.choice([0, 0, 0, 10, 50]),
        "preemptible": dice.random() < 0.8,
        "grace": f"{dice.choice([1, 3, 10])}s",
        "labels": {CHECKPOINTS_LABEL: "0s"},  # so that it may be moved
        "retries": {"max": retries, "backoff": "1s", "backoff_max": "10s"},
    }
    if dice.random() < 0.15:
        spec["time_limit"] = f"{dice.randint(5, 40)}s"
    return spec


def _plan(dice: random.Random, retries: int) -> Plan:
    return Plan(tries=tuple(_try(dice, last=number == retries + 2) for number in range(retries + 3)))


def _try(dice: random.Random, *, last: bool) -> dict[str, Any]:
    kind = dice.choices(
        ["succeed", "fail", "stubborn", "long", "oom", "refused"],
        [60, 12, 8, 8, 4, 4] if not last else [1, 0, 0, 0, 0, 0],
    )[0]
    long = dice.random() < 0.25
    done: dict[str, Any] = {"seconds": round(dice.uniform(25.0, 100.0) if long else dice.uniform(0.2, 25.0), 3)}
    if dice.random() < 0.2:
        done["start_seconds"] = round(dice.choice([dice.uniform(0.1, 2.0), dice.uniform(2.0, 25.0)]), 3)
    match kind:
        case "fail":
            done["exit_code"] = dice.randint(1, 3)
        case "stubborn":
            done["on_term"] = None
            done["seconds"] = round(dice.uniform(20.0, 90.0), 3)
        case "long":
            done["seconds"] = None
        case "oom":
            done["oom"] = True
            done["exit_code"] = 137
        case "refused":
            done["refused"] = "no such command"
        case _ if dice.random() < 0.4:
            done["on_term"] = 0
        case _:
            pass
    return done


class Client:
    """One user. What it was told, the witness knows."""

    def __init__(
        self,
        *,
        bus: SimBus,
        store: Any,
        dice: random.Random,
        history: History,
        witness: Witness,
        clock: Any,
    ) -> None:
        self._bus = bus
        self._store = store
        self._dice = dice
        self._history = history
        self._witness = witness
        self._clock = clock
        self.waiting = 0

    async def submit(self, spec: dict[str, Any], *, keyed: bool) -> str:
        """With a key, until it is acknowledged; without, once. Returns the job's id, or nothing."""
        name = spec["name"]
        key = f"key-{name}" if keyed else None
        headers = {"Authorization": f"Bearer {TOKEN}", **({"Idempotency-Key": key} if key else {})}
        payload = msgspec.json.encode(spec)
        self.waiting += 1
        try:
            while True:
                job_id = await self._once(name, payload, headers, key)
                if job_id or not keyed:
                    return job_id
                await asyncio.sleep(self._dice.uniform(0.2, AGAIN_SECONDS))
        finally:
            self.waiting -= 1

    async def _once(self, name: str, payload: bytes, headers: dict[str, str], key: str | None) -> str:
        try:
            answer = await self._bus.request_raw(SUBMIT, payload, headers=headers, seconds_max=3.0)
        except BusError:
            return ""
        answered = msgspec.json.decode(answer, type=SubmitAnswered)
        if answered.error:
            if answered.field:
                self._history.fail(f"{name} is refused: {answered.field}: {answered.error}")
            return ""
        self._history.note("client", f"{name} is {answered.job_id}")
        self._history.counts["jobs"] += answered.created
        self._witness.acknowledge(name, answered.job_id, key=key)
        return answered.job_id

    async def ask(self, kind: AskKind, subject_id: str, *, priority: int = 0) -> None:
        """As the gateway stores it, until it is stored; it may be stored more than once."""
        self.waiting += 1
        try:
            while True:
                try:
                    await self._store.ask(
                        kind, subject_id=subject_id, pool="default", tenant="admin", at=self._clock(), priority=priority
                    )
                    break
                except StoreError:
                    await asyncio.sleep(self._dice.uniform(0.2, AGAIN_SECONDS))
            self._history.counts["asks"] += 1
            await self._bus.publish(AskStored(pool="default"))
        finally:
            self.waiting -= 1

    async def meddle(self, nodes: list[str]) -> None:
        """Ask something of a job, or of a node."""
        jobs = sorted(self._witness.acknowledged)
        if not jobs:
            return
        kind = self._dice.choices([AskKind.CANCEL, AskKind.REQUEUE, AskKind.PRIORITISE, AskKind.DRAIN], [4, 3, 3, 1])[0]
        if kind is AskKind.DRAIN:
            node = self._dice.choice(nodes)
            await self.ask(AskKind.DRAIN, node)
            await asyncio.sleep(self._dice.uniform(1.0, 40.0))
            await self.ask(AskKind.RESUME, node)
        else:
            await self.ask(kind, self._dice.choice(jobs), priority=self._dice.choice([-5, 0, 20, 80]))
