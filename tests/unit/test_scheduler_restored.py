"""A store that went back in time: what nodes run of the time that it lost ends before anything else begins."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nodes import ScriptedNode
from tests.support.scheduler import World, world
from tests.support.tier import examples
from weft.domain.cluster import Node
from weft.domain.job import CauseCode, Job, JobState
from weft.domain.lease import Lease
from weft.messages.asks import AskKind
from weft.messages.nodes import EndReason, Leader
from weftd.scheduler.leadership import is_lost
from weftd.scheduler.thinking.core_settings import Settings

S = JobState
FENCE_SECONDS = 120.0
Backup = tuple[dict[str, Job], list[Node]]


class Restorable:
    """A world whose store can be put back, and whose nodes end what they run when they are cut off."""

    def __init__(self, w: World) -> None:
        self.w = w
        self.answered = dict.fromkeys(w.nodes, w.now)
        self.unnoticed = False

    def backup(self) -> Backup:
        return dict(self.w.stored), list(self.w.core.cluster_state.pool.nodes.values())

    def restore(self, backup: Backup) -> None:
        """Another leader begins from the backup. That it is one nobody knows before a node has spoken."""
        self.w.stored = dict(backup[0])
        self._lead(backup[1])
        self.unnoticed = True

    def sync(self, node_id: str, *, answered: bool = True) -> None:
        if self.unnoticed:
            self.unnoticed = False
            self._lead(list(self.w.core.cluster_state.pool.nodes.values()), went_back_at=self.w.now)
        self.w.sync(node_id, answered=answered)
        if answered:
            self.answered[node_id] = self.w.now
        self.check()

    def round(self) -> None:
        self.w.tick()
        for _ in range(3):
            for node_id in self.w.nodes:
                self.sync(node_id)

    def wait(self, seconds: float) -> None:
        until = self.w.now + seconds
        while self.w.now < until:
            self.tick(min(10.0, until - self.w.now))
            self.round()

    def tick(self, seconds: float) -> None:
        self.w.tick(seconds)
        for one in self.w.nodes.values():
            if self.w.now - self.answered[one.node_id] > FENCE_SECONDS:
                for key in set(one.live) - one.unkillable:
                    one.end(key, 143, reason=EndReason.FENCED)
        self.check()

    def check(self) -> None:
        """No GPU has two, and no job runs in two epochs, or one rank of it in two places."""
        epochs: dict[str, int] = {}
        places: dict[tuple[str, int], str] = {}
        gpus: dict[tuple[str, int], Any] = {}
        for one in self.w.nodes.values():
            for key in one.live:
                assert epochs.setdefault(key[0], key[1]) == key[1], f"{key} beside epoch {epochs[key[0]]}"
                place = places.setdefault((key[0], key[2]), one.node_id)
                assert place == one.node_id, f"{key} on {place} and {one.node_id}"
                for gpu in one.orders[key].gpus:
                    assert gpus.setdefault((one.node_id, gpu), key) == key, f"GPU {gpu} of {one.node_id}"

    def _lead(self, nodes: list[Node], *, went_back_at: float | None = None) -> None:
        self.w.lead_anew(self.w.open_jobs(), nodes, went_back_at=went_back_at)


def restorable(**of_world: Any) -> Restorable:
    return Restorable(world(**of_world))


def home(w: World, job_id: str) -> ScriptedNode:
    (found,) = [one for one in w.nodes.values() if any(key[0] == job_id for key in one.live)]
    return found


def test_what_was_placed_after_the_backup_is_stopped_and_nothing_begins_for_one_lease() -> None:
    r = restorable(nodes=2, gpus=4)
    w = r.w
    w.submit("j-1", gpus=4)
    backup = r.backup()
    r.round()
    assert w.state("j-1") is S.RUNNING
    r.restore(backup)
    r.round()
    job = w.core.cluster_state.jobs["j-1"]
    assert job.state is S.QUEUED
    assert job.waiting_for is not None
    assert job.waiting_for.code is CauseCode.STORE_RESTORED
    assert "the store was restored" in job.waiting_for.sentence
    assert not any(one.live for one in w.nodes.values())
    r.wait(140)
    assert w.state("j-1") is S.QUEUED
    r.wait(15)
    assert w.state("j-1") is S.RUNNING


def test_a_run_that_the_backup_knows_goes_on() -> None:
    r = restorable(nodes=2, gpus=4)
    r.w.submit("j-1", gpus=4)
    r.round()
    backup = r.backup()
    r.w.submit("j-2", gpus=4)
    r.round()
    r.restore(backup)
    r.round()
    assert r.w.state("j-1") is S.RUNNING
    assert r.w.core.cluster_state.jobs["j-1"].epoch == 0
    assert home(r.w, "j-1").live == [("j-1", 0, 0)]
    assert "j-2" not in r.w.core.cluster_state.jobs  # acknowledged after the backup: it is gone


def test_a_placed_job_of_the_backup_that_ran_on_elsewhere_is_not_started_twice() -> None:
    """In the backup it is placed and not started; in what was lost it was tried again on another node."""
    r = restorable(nodes=2, gpus=4)
    w = r.w
    w.submit("j-1", gpus=4)
    w.tick()
    backup = r.backup()
    assert backup[0]["j-1"].state is S.PLACED
    r.round()
    first = home(w, "j-1")
    (second,) = [one for one in w.nodes.values() if one is not first]
    first.end(("j-1", 0, 0), 0, reason=EndReason.LOST)
    w.ask(AskKind.DRAIN, first.node_id)
    r.round()
    r.wait(90)  # its back-off
    assert second.live == [("j-1", 1, 0)]
    second.unkillable.add(("j-1", 1, 0))
    r.restore(backup)
    r.wait(600)
    assert second.live == [("j-1", 1, 0)]
    assert not first.live
    second.end(("j-1", 1, 0), 137)
    r.round()
    assert w.state("j-1") is S.RUNNING
    assert first.live == [("j-1", 0, 0)]


def test_a_run_that_ended_in_what_was_lost_does_not_end_the_epoch_that_has_its_number_again() -> None:
    """The node still tells of epoch 0, which the store is yet to give: it is no answer to what is asked later."""
    r = restorable(nodes=1, gpus=4)
    w = r.w
    w.submit("j-1", gpus=4)
    backup = r.backup()
    r.round()
    w.nodes["node-1"].end(("j-1", 0, 0), 0)
    r.restore(backup)
    r.sync("node-1", answered=False)  # so it goes on telling
    for _ in range(30):
        w.tick(10)
        r.sync("node-1", answered=False)
    job = w.core.cluster_state.jobs["j-1"]
    assert job.state is S.QUEUED
    assert job.waiting_for is not None
    assert job.waiting_for.code is CauseCode.STILL_RUNS
    assert "has ended, and its end must be recorded first" in job.waiting_for.sentence
    r.round()
    r.round()
    assert w.state("j-1") is S.RUNNING
    assert w.nodes["node-1"].live == [("j-1", 0, 0)]


def test_a_run_of_the_same_placement_that_ended_in_what_was_lost_is_taken_for_what_it_is() -> None:
    """The backup has the job running there in this epoch: it is the same run, so its end counts."""
    r = restorable(nodes=1, gpus=4)
    r.w.submit("j-1", gpus=4)
    r.round()
    backup = r.backup()
    r.w.nodes["node-1"].end(("j-1", 0, 0), 0)
    r.restore(backup)
    r.round()
    assert r.w.state("j-1") is S.SUCCEEDED


def test_a_node_that_joined_after_the_backup_and_is_cut_off_has_fenced_before_anything_begins() -> None:
    r = restorable(nodes=1, gpus=4)
    w = r.w
    w.submit("j-1", gpus=4)
    w.submit("j-2", gpus=4)
    backup = r.backup()
    late = w.nodes["node-2"] = ScriptedNode("node-2", w.nodes["node-1"].capacity)
    r.answered["node-2"] = w.now
    r.round()
    r.round()
    assert len(late.live) == 1
    r.restore(backup)
    for _ in range(60):
        r.tick(10)
        r.sync("node-1")
    assert not late.live
    assert sorted(job.state for job in w.stored.values()) == [S.QUEUED, S.RUNNING]
    assert len(w.nodes["node-1"].live) == 1


def test_the_time_in_which_nothing_may_start_counts_for_no_deadline() -> None:
    r = restorable(nodes=1, gpus=4, settings=Settings(start_seconds=30, lease_seconds=150))
    r.w.submit("j-1", gpus=4, spec={"retries": {"max": 0}})
    r.w.tick()
    r.restore(r.backup())
    r.wait(140)
    assert r.w.state("j-1") is S.PLACED
    r.wait(30)
    assert r.w.state("j-1") is S.RUNNING


# who says so


LEASE = Lease(name="default", holder="m", epoch=6, seq=10)
ENDED = {5: Lease(name="default", holder="k", epoch=5, seq=3000)}


@pytest.mark.parametrize(
    ("epoch", "holder", "seq", "lost"),
    [
        (6, "m", 10, False),
        (6, "m", 9, False),
        (5, "k", 3000, False),
        (5, "k", 2000, False),
        (4, "x", 99999, False),  # of that nothing is known any more
        (6, "m", 11, True),  # renewed further than we ever did
        (6, "other", 1, True),  # the number was given to another
        (7, "other", 0, True),
        (5, "k", 3001, True),  # the leader before us went on after the backup
        (5, "other", 1, True),
        (10**12, "liar", 0, False),
    ],
)
def test_a_leader_that_the_store_does_not_know_is_of_a_lost_time(epoch: int, holder: str, seq: int, lost: bool) -> None:
    assert is_lost(Leader(pool="default", epoch=epoch, holder=holder, seq=seq), LEASE, ENDED) is lost


# whatever happens

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 4), st.integers(1, 3)),
        st.tuples(st.just("sync"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("all"), st.just(0), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 50), st.integers(0, 1)),
        st.tuples(st.just("hold on"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("requeue"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("tick"), st.integers(1, 60), st.just(0)),
        st.tuples(st.just("leader"), st.just(0), st.just(0)),
        st.tuples(st.just("backup"), st.just(0), st.just(0)),
        st.tuples(st.just("restore"), st.integers(0, 5), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=examples(200), deadline=None)
@given(ACTIONS)
def test_whatever_backup_is_restored_nothing_runs_twice_at_once(actions: list[tuple[str, int, int]]) -> None:
    r = restorable(nodes=3, gpus=4)
    w = r.w
    backups = [r.backup()]
    for kind, a, b in actions:
        live = [(one, key) for one in w.nodes.values() for key in one.live]
        match kind:
            case "submit":
                w.submit(f"j-{w.seq}", gpus=a, replicas=b, spec={"retries": {"max": 1}})
            case "sync":
                r.sync(f"node-{a}", answered=bool(b))
            case "all":
                r.round()
            case "end" if live:
                one, key = live[a % len(live)]
                one.unkillable.discard(key)
                one.end(key, b)
            case "hold on" if live:
                one, key = live[a % len(live)]
                one.unkillable.add(key)
            case "cancel" | "requeue" if w.core.cluster_state.jobs:
                job_id = sorted(w.core.cluster_state.jobs)[a % len(w.core.cluster_state.jobs)]
                w.ask(AskKind.CANCEL if kind == "cancel" else AskKind.REQUEUE, job_id)
            case "tick":
                r.tick(float(a))
                for (
                    one
                ) in w.nodes.values():  # what cannot be killed lives on where it is heard of: fences are others' matter
                    r.sync(one.node_id)
            case "leader":
                w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
            case "backup":
                backups.append(r.backup())
            case "restore":
                r.restore(backups[a % len(backups)])
            case _:
                pass
        r.check()
    for one in w.nodes.values():
        one.unkillable.clear()
    for _ in range(60):  # and then it all comes to an end
        for one in w.nodes.values():
            for key in one.live:
                one.end(key, 0)
        w.now += 10
        r.round()
    assert not w.core.cluster_state.jobs, {job_id: kept.state for job_id, kept in w.core.cluster_state.jobs.items()}
