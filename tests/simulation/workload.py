"""What users do: submit jobs of all behaviours, send them again, cancel, requeue and prioritise them, drain nodes."""

import asyncio
import random
from typing import Any

import msgspec
from msgspec import structs

from tests.simulation.history import History
from tests.simulation.machine import DO, Plan
from tests.simulation.network import SimBus
from tests.simulation.witness import Witness
from weft.bus import BusError
from weft.domain.checkpoints import CHECKPOINTS_LABEL
from weft.messages.asks import AskKind, AskStored, Reshare, Scale, SubmitAnswered, Update
from weft.store import StoreError

SUBMIT = "weft.submit"
TOKEN = "weft_" + "s" * 40
AGAIN_SECONDS = 1.0
ELASTIC = (0.2, 0.5, 0.5, 1.0)  # the part of the jobs of one life that may take another size
SHARED = (0.0, 0.3, 0.3, 0.9)  # and of those with one GPU a rank, the part that asks for a share of one


def job(
    dice: random.Random, number: int, *, ranks_max: int, gpus_max: int, elastic: float, shared: float
) -> dict[str, Any]:
    """A specification, as a user would send it; `elastic`: the part of the jobs that may take another size; `shared`:
    of those with one GPU a rank, the part that asks for a share of one."""
    spec = _job(dice, number, ranks_max=ranks_max, gpus_max=gpus_max, elastic=elastic)
    for role in spec["roles"].values():
        if role["gpus"] == 1 and dice.random() < shared:
            role["gpus"], role["share"] = 0, _share(dice)
    if any("share" in role for role in spec["roles"].values()):
        spec["kind"] = dice.choice(["training", "batch", "notebook", "inference"])
    return spec


def _share(dice: random.Random) -> dict[str, Any]:
    request = dice.choice([0.001, 0.1, 0.25, 0.3, 0.5, 0.7, 1.0])
    memory = dice.choice(["1MiB", "2GiB", "4GiB", "8GiB", "12GiB", "16GiB"])
    return {"request": request, "limit": dice.choice([request, 1.0]), "memory": memory}


def _job(dice: random.Random, number: int, *, ranks_max: int, gpus_max: int, elastic: float) -> dict[str, Any]:
    if dice.random() < elastic:
        return _elastic(dice, number, ranks_max=ranks_max, gpus_max=gpus_max)
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


def _elastic(dice: random.Random, number: int, *, ranks_max: int, gpus_max: int) -> dict[str, Any]:
    """A job that may take another size, live or by a restart."""
    live = dice.random() < 0.65
    retries = dice.choice([0, 1, 3, 5])
    gpus = min(dice.choice([0, 1, 1, 1, 2]), gpus_max)
    places = ranks_max if not gpus else gpus_max // gpus * max(1, ranks_max // gpus_max)
    roles = {"worker": _role(dice, ranks_max=places, gpus=gpus)}
    if dice.random() < 0.35:
        roles["ps"] = _role(dice, ranks_max=3, gpus=0)
    ranks = {str(rank): _odd(dice) for rank in range(1, 24) if live and dice.random() < 0.2}
    plan = structs.replace(_plan(dice, retries + 4, long=0.7), ranks=ranks)
    spec: dict[str, Any] = {
        "name": f"job-{number}",
        "command": ["true"],
        "env": {DO: msgspec.json.encode(plan).decode()},
        "roles": roles,
        "priority": dice.choice([0, 0, 0, 10, 50]),
        "preemptible": dice.random() < 0.8,
        "grace": f"{dice.choice([1, 3, 10])}s",
        "retries": {"max": retries, "backoff": "1s", "backoff_max": "10s"},
    }
    if live:
        spec["resize"] = {"how": "live"}
    if not live or dice.random() < 0.3:
        spec["checkpoints"] = {"on_stop": True}
    return spec


def _role(dice: random.Random, *, ranks_max: int, gpus: int) -> dict[str, Any]:
    most = dice.randint(min(2, ranks_max), ranks_max)
    want = dice.randint(1, most)
    replicas = {"min": dice.randint(1, want), "want": want, "max": most}
    return {"replicas": replicas, "gpus": gpus, "cpus": dice.choice([0.5, 1.0]), "memory": "1GiB"}


def _odd(dice: random.Random) -> dict[str, Any]:
    """What a rank does that is not as its gang: it fails, ends early, cannot start, begins late, or does not stop."""
    soon = round(dice.uniform(0.2, 8.0), 3)
    return dice.choice(
        [
            {"seconds": soon, "exit_code": 1},
            {"seconds": soon, "exit_code": 0},
            {"refused": "no such command"},
            {"start_seconds": round(dice.uniform(2.0, 90.0), 3), "seconds": None},
            {"on_term": None, "seconds": None},
        ]
    )


def size_of(dice: random.Random, spec: dict[str, Any]) -> dict[str, int]:
    """Another size of a job, or now and then one that makes no sense."""
    if dice.random() < 0.1:
        return dice.choice([{"nobody": 1}, {"worker": 0}, {"worker": -1}, {"worker": 1000}, {}])
    size: dict[str, int] = {}
    for name, role in spec["roles"].items():
        replicas = role["replicas"]
        if name == "worker" or dice.random() < 0.5:
            size[name] = dice.randint(replicas.get("min", replicas["want"]), replicas.get("max", replicas["want"]))
    return size


def _plan(dice: random.Random, retries: int, *, long: float = 0.25) -> Plan:
    """`long`: the part of the tries that last long."""
    return Plan(tries=tuple(_try(dice, last=number == retries + 2, long=long) for number in range(retries + 3)))


def _try(dice: random.Random, *, last: bool, long: float) -> dict[str, Any]:
    kind = dice.choices(
        ["succeed", "fail", "stubborn", "long", "oom", "refused"],
        [60, 12, 8, 8, 4, 4] if not last else [1, 0, 0, 0, 0, 0],
    )[0]
    seconds = dice.uniform(25.0, 100.0) if dice.random() < long else dice.uniform(0.2, 25.0)
    done: dict[str, Any] = {"seconds": round(seconds, 3)}
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
        self.resumed: set[str] = set()  # nodes

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

    async def ask(
        self,
        kind: AskKind,
        subject_id: str,
        *,
        priority: int = 0,
        scale: Scale | None = None,
        share: Reshare | None = None,
        update: Update | None = None,
    ) -> None:
        """As the gateway stores it, until it is stored; it may be stored more than once."""
        self.waiting += 1
        try:
            while True:
                try:
                    await self._store.ask(
                        kind,
                        subject_id=subject_id,
                        pool="default",
                        tenant="admin",
                        at=self._clock(),
                        priority=priority,
                        scale=scale,
                        share=share,
                        update=update,
                    )
                    break
                except StoreError:
                    await asyncio.sleep(self._dice.uniform(0.2, AGAIN_SECONDS))
            self._history.counts["asks"] += 1
            if kind is AskKind.RESUME:
                self.resumed.add(subject_id)
            await self._bus.publish(AskStored(pool="default"))
        finally:
            self.waiting -= 1

    async def meddle(self, nodes: list[str]) -> None:
        """Ask something of a job, or of a node."""
        jobs = sorted(self._witness.acknowledged)
        if not jobs:
            return
        kinds = [AskKind.CANCEL, AskKind.REQUEUE, AskKind.PRIORITISE, AskKind.DRAIN, AskKind.SHARE]
        kind = self._dice.choices(kinds, [4, 3, 3, 1, 12])[0]
        if kind is AskKind.SHARE:
            parts = [None, -1, 0, 1, 100, 300, 500, 900, 1000, 2000]
            share = Reshare(request=self._dice.choice(parts), limit=self._dice.choice(parts))
            await self.ask(kind, self._dice.choice(jobs), share=share)
        elif kind is AskKind.DRAIN:
            node = self._dice.choice(nodes)
            await self.ask(AskKind.DRAIN, node)
            await asyncio.sleep(self._dice.uniform(1.0, 40.0))
            await self.ask(AskKind.RESUME, node)
        else:
            await self.ask(kind, self._dice.choice(jobs), priority=self._dice.choice([-5, 0, 20, 80]))
