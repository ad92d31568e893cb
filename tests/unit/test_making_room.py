"""Room that is being made goes to the first in the order, whoever it was begun for, with quotas or without."""

from random import Random
from typing import Any

import pytest

from tests.support.scheduler import World, world
from tests.support.tier import some
from weft.domain.job import CauseCode, JobEvent, JobState, Step
from weft.domain.quotas import ALL, Quota

S = JobState


class Graced(World):
    """Jobs that need this part of their grace to stop."""

    def __init__(self, quotas: tuple[Quota, ...] = (), *, gpus: int = 4, nodes: int = 2) -> None:
        made = world(gpus=gpus, nodes=nodes)
        self.__dict__.update(vars(made))
        self.core.cluster_state.limit(quotas, self.now)
        self.needs: dict[str, float] = {}
        self.began: dict[str, float] = {}  # when each was last placed
        self.came: dict[str, float] = {}
        self.waits_since: dict[str, float] = {}  # when each came, or gave way
        self._told_at: dict[tuple[str, int], float] = {}

    def come(self, job_id: str, *, needs: float = 0.0, **fields: Any) -> None:
        self.needs[job_id] = needs
        self.came[job_id] = self.waits_since[job_id] = self.now
        self.submit(job_id, **fields)

    def second(self) -> list[Step]:
        """One second, in which all that is decided is done, but for the graces."""
        before = len(self.steps)
        for node in self.nodes.values():
            stopping = [key for key in node.live if self.state(key[0]) is S.STOPPING]
            for key in stopping:
                since = self._told_at.setdefault((key[0], key[1]), self.now)
                if self.now >= since + self.needs[key[0]]:
                    node.unkillable.discard(key)
            node.unkillable.update(key for key in node.live if key not in stopping)
        self.round()
        for node in self.nodes.values():
            node.unkillable.update(key for key in node.live if self.state(key[0]) is not S.STOPPING)
        done = self.steps[before:]
        for step in done:
            if step.event is JobEvent.PLACED:
                self.began[step.job_id] = self.now
            elif step.event is JobEvent.STOPPING and step.cause.by in self.came:
                assert self.waits_since[step.cause.by] >= self.began[step.job_id], (
                    f"{step.cause.by} waited when {step.job_id} started, and stops it"
                )
            elif step.event is JobEvent.REQUEUED:
                self.waits_since[step.job_id] = self.now
        return done


def quota(name: str, guaranteed: int, **fields: Any) -> Quota:
    return Quota(name=name, guaranteed={ALL: guaranteed * 1000}, **fields)


CASES = {
    "no quota": (),
    "a quota of somebody else": (quota("unrelated", 1),),
    "the greater job is inside its guarantee": (quota("t-high", 8),),
}


@pytest.mark.parametrize("quotas", CASES.values(), ids=CASES.keys())
def test_room_that_is_made_for_a_lesser_job_goes_to_a_greater_one_that_comes_meanwhile(
    quotas: tuple[Quota, ...],
) -> None:
    w = Graced(quotas)
    w.come("j-low1", needs=20.0, tenant="t-a", gpus=4)
    w.come("j-low2", needs=20.0, tenant="t-a", gpus=4, spec={"priority": 5})
    w.second()
    w.second()
    w.come("j-mid", tenant="t-b", gpus=4, spec={"priority": 10})
    for _ in range(7):
        w.second()
    assert w.state("j-low1") is S.STOPPING
    w.come("j-high", tenant="t-high", gpus=4, spec={"priority": 50, "role": {"replicas": {"want": 2}}})
    w.second()
    why = w.stored["j-high"].waiting_for
    assert why is not None
    assert why.code is CauseCode.MAKING_ROOM
    came = w.now
    while w.state("j-high") is not S.RUNNING:
        w.second()
        assert w.state("j-mid") is S.QUEUED
        assert w.now <= came + 22.0, "one grace"
    why = w.stored["j-mid"].waiting_for
    assert why is not None
    assert why.code is not CauseCode.MAKING_ROOM
    assert JobEvent.PLACED not in w.told("j-mid")


def trees(random: Random) -> tuple[Quota, ...]:
    """None, or guarantees of others: all that comes here borrows."""
    if random.random() < 0.4:
        return ()
    groups = [quota("g", random.randrange(5), is_group=True)] if random.random() < 0.5 else []
    within = "g" if groups and random.random() < 0.5 else ""
    return (*groups, quota("unrelated", random.randrange(1, 4), group=within))


@pytest.mark.parametrize("seed", some(3, range(16)))
def test_the_greatest_job_starts_after_one_grace_and_no_job_starts_only_to_be_stopped_for_one_that_waits(
    seed: int,
) -> None:
    """Victims that end at different times, and greater jobs that come meanwhile."""
    random = Random(seed)
    w = Graced(trees(random), nodes=random.randrange(2, 4))
    for second in range(120):
        if second < 4 or random.random() < 0.2:
            w.come(
                f"j-{second}",
                needs=random.choice([0.0, 2.0, 8.0, 20.0]),
                tenant=f"t-{random.randrange(3)}",
                gpus=random.choice([1, 2, 4, 4]),
                spec={"priority": random.choice([0, 5, 10, 50]) if second > 3 else 0},
            )
        if second == 80:
            w.come("j-greatest", tenant="t-3", gpus=4, spec={"priority": 90, "role": {"replicas": {"want": 2}}})
        w.second()
        if second == 81 and w.state("j-greatest") is S.QUEUED:
            why = w.stored["j-greatest"].waiting_for
            assert why is not None
            assert why.code is CauseCode.MAKING_ROOM, why
    assert w.began["j-greatest"] <= w.came["j-greatest"] + 24.0, "one grace of 20 s"
