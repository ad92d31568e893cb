"""Users of services: replicas that die, that become ready late or never, that do not stop; sizes from none to all, and
updates, of which some never become ready.

In some lives they stand beside elastic training that holds all GPUs, and live from what it lends. Services have dice of
their own, and so has that training: those of the other users fall as without them.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec

from tests.simulation.history import History
from tests.simulation.machine import DO, Plan
from tests.simulation.workload import Client
from tests.support.doubles.store import MemoryStore
from weft.domain.job import Cause, CauseCode
from weft.messages.asks import AskKind, Scale, Update

LIVES = 0.4  # the part of all lives that have services
LENDING = 0.6  # of those, the part with training that holds whatever is free
RANKS_ODD = 60  # the first so many replicas of a service may be odd; all later ones do as they should


def service(dice: random.Random, number: int, *, gpus_max: int) -> dict[str, Any]:
    """A specification, as a user would send it."""
    most = dice.randint(1, 5)
    want = dice.choice([0, 1, 1, most])
    gpus = min(dice.choice([0, 1, 1]), gpus_max)
    role: dict[str, Any] = {
        "replicas": {"min": dice.randint(0, want), "want": want, "max": most},
        "gpus": gpus,
        "cpus": 0.5,
        "memory": "1GiB",
    }
    if gpus and dice.random() < 0.4:
        role |= {"gpus": 0, "share": {"request": dice.choice([0.2, 0.4]), "memory": "2GiB"}}
    return {
        "name": f"service-{number}",
        "kind": "inference",
        "command": ["serve"],
        "env": {DO: msgspec.json.encode(_plan(dice)).decode()},
        "roles": {"worker": role},
        "priority": dice.choice([0, 10, 50]),
        "preemptible": dice.random() < 0.8,
        "grace": f"{dice.choice([1, 3])}s",
        "retries": {"max": dice.choice([0, 3, 8]), "backoff": "1s", "backoff_max": "8s"},
        "service": {
            "ready": "/healthz",
            "start": f"{dice.choice([8, 15])}s",
            "drain": f"{dice.choice([0, 1, 5])}s",
            "max_surge": dice.choice([1, 1, 2]),
        },
    }


def _plan(dice: random.Random) -> Plan:
    """`ranks` count in every epoch but the last, so there are many."""
    usual = {"seconds": None, "ready_seconds": round(dice.uniform(0.0, 4.0), 3)}
    if dice.random() < 0.1:
        usual["ready_seconds"] = None  # never
    odd = {str(rank): _odd(dice) for rank in range(RANKS_ODD) if dice.random() < 0.3}
    return Plan(tries=(usual,) * 40, ranks=odd)


def _odd(dice: random.Random) -> dict[str, Any]:
    soon = round(dice.uniform(0.2, 20.0), 3)
    return dice.choice(
        [
            {"seconds": soon, "exit_code": 1},
            {"seconds": soon, "exit_code": 0},
            {"refused": "no such command"},
            {"seconds": None, "ready_seconds": None},
            {"seconds": None, "start_seconds": round(dice.uniform(1.0, 40.0), 3)},
            {"seconds": None, "on_term": None},
            {"seconds": soon, "oom": True, "exit_code": 137},
        ]
    )


def lender(dice: random.Random, number: int, *, gpus: int) -> dict[str, Any]:
    """Training that takes all GPUs as soon as they are free, and has nearly all of them to spare."""
    live = dice.random() < 0.75
    odd = {str(rank): _odd(dice) for rank in range(1, RANKS_ODD) if live and dice.random() < 0.1}
    usual = {"seconds": None, "on_term": dice.choice([None, 0])}
    return {
        "name": f"lender-{number}",
        "kind": "training",
        "command": ["train"],
        "env": {DO: msgspec.json.encode(Plan(tries=(usual,) * 40, ranks=odd)).decode()},
        "roles": {"worker": {"replicas": {"min": 1, "want": gpus}, "gpus": 1, "cpus": 0.5, "memory": "1GiB"}},
        "priority": dice.choice([-10, 0]),
        "grace": f"{dice.choice([1, 3, 10])}s",
        "retries": {"max": 8, "backoff": "1s", "backoff_max": "8s"},
        **({"resize": {"how": "live"}} if live else {"resize": {"how": "restart"}, "checkpoints": {"on_stop": True}}),
    }


class ServiceUsers:
    """`lends`: dice of the training beside the services; `gpus`: how many there are.

    `specs`: the specifications as they were sent, by the name of the job; a service is added when it is sent.
    """

    def __init__(
        self,
        store: MemoryStore,
        dice: random.Random,
        *,
        specs: dict[str, dict[str, Any]],
        history: History,
        clock: Callable[[], float],
        gpus_max: int,
        gpus: int,
        lends: random.Random,
    ) -> None:
        self._gpus = gpus
        self._lends = lends
        self._lent: set[tuple[str, str, int]] = set()
        self._store = store
        self._dice = dice
        self._specs = specs
        self._history = history
        self._clock = clock
        self._gpus_max = gpus_max

    async def use(self, client: Client, seconds: float) -> None:
        """For so long, submit services and change them; in most lives nothing."""
        dice, loop = self._dice, asyncio.get_running_loop()
        until = loop.time() + seconds
        if dice.random() >= LIVES:
            return
        if self._lends.random() < LENDING:
            for number in range(self._lends.choice([1, 1, 2])):
                spec = lender(self._lends, number, gpus=max(2, self._gpus - self._lends.randint(0, 1)))
                self._specs[spec["name"]] = spec
                await client.submit(spec, keyed=True)
        for number in range(dice.randint(1, 4)):
            spec = service(dice, number, gpus_max=self._gpus_max)
            self._specs[spec["name"]] = spec
            await client.submit(spec, keyed=True)
            self._history.counts["services"] += 1
        pace = dice.uniform(0.5, 8.0)
        while (pause := dice.expovariate(1.0 / pace)) + loop.time() < until:
            await asyncio.sleep(pause)
            jobs = [job for job in await self._store.jobs(tenant=None) if job.spec.is_service]
            self._lent |= {(job.id, loan.lender, loan.rank) for job in jobs for loan in job.loans}
            self._history.counts["loans"] = len(self._lent)
            if jobs:
                await self._change(dice.choice(jobs).id, client)

    async def _change(self, job_id: str, client: Client) -> None:
        dice = self._dice
        what = dice.random()
        if what < 0.25:
            plan = msgspec.json.encode(_plan(dice)).decode()
            self._history.counts["updates asked"] += 1
            await client.ask(AskKind.UPDATE, job_id, update=Update(env={DO: plan}))
        elif what < 0.6:
            await client.ask(AskKind.SCALE, job_id, scale=Scale(size={"worker": dice.randint(0, 6)}))
        else:  # as the autoscaler asks
            cause = Cause(code=CauseCode.LOAD, sentence="by chance")
            scales = {job_id: Scale(size={"worker": dice.randint(0, 5)}, cause=cause)}
            await self._store.ask_sizes(scales, pool="default", at=self._clock())
