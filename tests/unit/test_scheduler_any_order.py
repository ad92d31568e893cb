"""Jobs, asks, nodes and leaders in any order: no scheduler ends by it, and what it believes stays sound.

`World` checks after every step that no GPU is given twice and that jobs, holdings and free capacity agree.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec import structs

from tests.support.scheduler import World, world
from tests.support.service_lives import service
from tests.support.tier import some
from weft.domain.arrays import Element
from weft.domain.dependencies import Ends
from weft.domain.quotas import ALL, Quota
from weft.domain.shares import WHOLE
from weft.messages.asks import AskKind, RankTuning
from weft.messages.nodes import RunSeen, RunState
from weft.planning.policy import Policy
from weftd.scheduler.thinking.core_settings import Settings

POLICIES = (
    Policy("priority", "packed-sticky", "none"),
    Policy("priority", "weft-best", "easy"),
    Policy("las", "weft-best", "easy"),
    Policy("fair", "packed-sticky", "easy"),
    Policy("fifo", "weft-best", "none"),
)
JOBS_MAX, DEEDS = 12, 80
WORLDS = 40  # of each test


class Life:
    """One world, and what happens to it by chance."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = Random(seed)
        self.world: World = world(
            nodes=dice.choice([1, 2, 3]), gpus=dice.choice([1, 2, 4]), settings=Settings(policy=dice.choice(POLICIES))
        )
        self.ids: list[str] = []
        self.limits: list[Quota] = []

    def go_on(self) -> None:
        deeds: list[Callable[[], object]] = [
            *(self.submit_service, self.submit_gang, self.submit_elastic, self.submit_shared),
            *(self.submit_array, self.submit_singleton, self.tell_ends),
            *(self.scale, self.scale, self.scale_to_nothing, self.cancel, self.requeue, self.prioritise),
            *(self.tune, self.share, self.share, self.update, self.drain_or_resume, self.end, self.leave, self.orphan),
            *(self.tick, self.tick, self.tick, self.wait, self.sync, self.sync, self.world.round),
            *(self.lead_anew, self.quotas),
        ]
        for _ in range(DEEDS):
            self.dice.choice(deeds)()

    # submissions

    def submit_service(self) -> None:
        least = self.dice.choice([0, 0, 1])
        wanted = service(least=least, want=self.dice.choice([least, 1, 2, 3]), priority=self._priority())
        self._submit(wanted, gpus=self.dice.choice([0, 1, 1, 2]))

    def submit_gang(self) -> None:
        wanted: dict[str, Any] = {"priority": self._priority(), "preemptible": self.dice.random() < 0.7}
        if self.dice.random() < 0.3:
            wanted["retries"] = {"max": 3, "backoff": "5s"}
        if self.dice.random() < 0.2:
            wanted["time_limit"] = "60s"
        wanted |= self._after()
        self._submit(wanted, gpus=self.dice.choice([0, 1, 2, 4]), replicas=self.dice.choice([1, 1, 2, 3]))

    def submit_elastic(self) -> None:
        how = self.dice.choice(["live", "restart"])
        size = {"replicas": {"min": 1, "want": self.dice.choice([1, 2, 3]), "max": 4}}
        wanted = {"priority": self._priority(), "resize": {"how": how}, "role": size}
        if how == "restart":
            wanted["checkpoints"] = {"on_stop": True}
        self._submit(wanted, gpus=self.dice.choice([0, 1, 1, 2]))

    def submit_shared(self) -> None:
        memory = self.dice.choice(["1GiB", "4GiB"])
        share = {"share": {"request": self.dice.choice([0.25, 0.5]), "limit": 1.0, "memory": memory}}
        wanted = service(want=self.dice.choice([0, 1, 3])) if self.dice.random() < 0.5 else {}
        self._submit({**wanted, "priority": self._priority(), "role": {**wanted.get("role", {}), **share}}, gpus=0)

    def submit_array(self) -> None:
        """Elements of one array, perhaps so many at once, perhaps after another job."""
        array, at_once, after = f"a-{len(self.ids)}", self.dice.choice([None, 1, 2]), self._after()
        for index in range(self.dice.choice([1, 2, 4])):
            element = Element(array=array, name="part", index=index, at_once=at_once)
            self._submit({"name": f"part-{index}", **after}, element=element, gpus=1)

    def submit_singleton(self) -> None:
        self._submit({"name": "only", "singleton": True, **self._after()}, gpus=self.dice.choice([0, 1]))

    def _after(self) -> dict[str, Any]:
        if not self.ids or self.dice.random() < 0.5:
            return {}
        when = self.dice.choice(["ok", "any", "not_ok", "started"])
        return {"after": [{"job": self.dice.choice([*self.ids, "j-of-before", "a-0"]), "when": when}]}

    def _submit(self, wanted: dict[str, Any], **fields: Any) -> None:
        if len(self.ids) < JOBS_MAX:
            job_id = f"j-{len(self.ids) + 1}"
            self.world.submit(job_id, tenant=self.dice.choice(["alice", "bob"]), spec=wanted, **fields)
            self.ids.append(job_id)

    def _priority(self) -> int:
        return self.dice.choice([-10, 0, 5, 10])

    # asks

    def scale(self) -> None:
        if self.ids:
            tenant = self.dice.choice(["alice", "weft"])
            self.world.scale(self.dice.choice(self.ids), tenant=tenant, worker=self.dice.randrange(5))

    def scale_to_nothing(self) -> None:
        if self.ids:
            self.world.scale(self.dice.choice(self.ids), worker=0)

    def cancel(self) -> None:
        if self.ids and self.dice.random() < 0.4:
            self.world.ask(AskKind.CANCEL, self.dice.choice(self.ids))

    def requeue(self) -> None:
        if self.ids:
            job_id = self.dice.choice(self.ids)
            self.world.ask(AskKind.REQUEUE, job_id, job=self.world.stored[job_id])

    def prioritise(self) -> None:
        if self.ids:
            self.world.ask(AskKind.PRIORITISE, self.dice.choice(self.ids), self._priority())

    def tune(self) -> None:
        if self.ids:
            rank = RankTuning(rank=self.dice.choice([0, 1, 7]), cpus=self.dice.choice([0.5, 1.0, 64.0]))
            self.world.tune(self.dice.choice(self.ids), rank)

    def share(self) -> None:
        if self.ids:
            self.world.share(self.dice.choice(self.ids), request=self.dice.choice([100, 250, 500, 1000]))

    def update(self) -> None:
        if self.ids:
            self.world.update(self.dice.choice(self.ids), env={"A": str(self.dice.random())})

    def drain_or_resume(self) -> None:
        self.world.ask(self.dice.choice([AskKind.DRAIN, AskKind.RESUME]), self._node())

    # nodes, leaders, and the store

    def tell_ends(self) -> None:
        """As the store says what became of jobs that are not open."""
        total = self.dice.choice([0, 1, 3])
        ended = self.dice.randrange(total + 1)
        ok = self.dice.randrange(ended + 1)
        began = self.dice.randrange(total + 1)
        of = self.dice.choice(["j-of-before", "a-0"])
        self.world.core.tell_ends(
            [Ends(id=of, total=total, ended=ended, ok=ok, bad=ended - ok, began=began)], self.world.now
        )

    def end(self) -> None:
        node = self.world.nodes[self._node()]
        if node.live:
            node.end(self.dice.choice(sorted(node.live)), self.dice.choice([0, 0, 1, 143]))

    def leave(self) -> None:
        node = self.world.nodes[self._node()]
        node.leaving = not node.leaving

    def orphan(self) -> None:
        """A node reports a run that it was never told of."""
        node = self.world.nodes[self._node()]
        if not self.ids or not node.orders:
            return
        job_id, epoch, rank = key = (self.dice.choice(self.ids), self.dice.choice([0, 1, 2]), self.dice.choice([0, 5]))
        if key not in node.runs:
            order = node.orders[self.dice.choice(sorted(node.orders))]
            node.orders[key] = structs.replace(order, job_id=job_id, epoch=epoch, rank=rank)
            state = self.dice.choice([RunState.RUNNING, RunState.STARTING])
            node.runs[key] = RunSeen(job_id=job_id, epoch=epoch, rank=rank, state=state, gpus=())

    def tick(self) -> None:
        self.world.tick()

    def wait(self) -> None:
        """Longer than a lease, a start or a stop may take; or hardly at all."""
        self.world.tick(self.dice.choice([0.01, 10.0, 30.0, 130.0, 400.0, 1000.0]))

    def sync(self) -> None:
        self.world.sync(self._node(), answered=self.dice.random() < 0.8)

    def lead_anew(self) -> None:
        if self.dice.random() < 0.5:
            went_back_at = self.world.now if self.dice.random() < 0.4 else None
            nodes = list(self.world.core.cluster_state.pool.nodes.values())
            self.world.lead_anew(self.world.open_jobs(), nodes, went_back_at=went_back_at)

    def quotas(self) -> None:
        quotas = [
            Quota(name="alice", guaranteed={ALL: WHOLE * self.dice.choice([0, 1, 2])}, limit={ALL: 2 * WHOLE}),
            Quota(name="bob", guaranteed={ALL: WHOLE}),
        ]
        self.limits = quotas if self.dice.random() < 0.7 else []
        self.world.core.cluster_state.limit(self.limits, self.world.now)

    def _node(self) -> str:
        return self.dice.choice(list(self.world.nodes))


@pytest.mark.parametrize("first", some(2, range(0, 12 * WORLDS, WORLDS)))
def test_nothing_that_happens_in_any_order_ends_a_scheduler_or_gives_a_gpu_twice(first: int) -> None:
    for seed in range(first, first + WORLDS):
        Life(seed).go_on()
