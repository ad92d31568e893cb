"""Whatever is measured, told and done: no ask leaves the envelope, and a rollback restores what was, exactly."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.builders import GIB
from tests.support.tier import examples
from tests.support.trained import Kindred, Model, Trained, node_of
from weft.domain.job import Allocation, CauseCode, Placement
from weft.domain.spec import TuningMode
from weft.messages.asks import RankTuning, Tune
from weft.messages.nodes import Pace, ProgressSeen, RunProgressed
from weft.messages.signals import HostSample, NodeSampled, RunSample
from weft.tuning import limits
from weft.tuning.envelope import bounds_of
from weft.tuning.proposal import Free
from weft.tuning.rollback import PART_MIN, that_fits
from weft.tuning.split import Demand, best_split
from weftd.reallocator.thinking.core import Reallocator

WINDOW = 4.0
QUICK = (Phase.explicit, Phase.generate)  # a history that breaks a law is short enough as it is
part = st.floats(0.0, 1.0)
limit = st.floats(0.05, 4.0).map(lambda cpus: round(cpus, 3))


@st.composite
def ranks_seen(draw: st.DrawFn, theme: str) -> dict[str, object]:
    """One rank's sample: short of what the theme says, or anything at all."""
    wild = theme == "anything"
    anything = st.one_of(st.none(), part, st.sampled_from([-1.0, 1e308, 0.0]))
    memory_short = theme == "memory" and draw(st.booleans())
    return {
        "use": draw(st.floats(0.5, 1.0) if theme == "cpus" else st.floats(0.0, 0.45) if theme == "idle" else part),
        "cpu_throttled": draw(anything if wild else st.sampled_from([0.0, 0.5, 0.95] if theme == "cpus" else [0.0])),
        "busiest": draw(st.one_of(st.none(), part)),
        "memory": draw(part if wild else st.just(0.5)),
        "memory_failures_rate": draw(anything) if wild else 50.0 * memory_short,
        "major_faults_rate": draw(anything) if wild else 500.0 * memory_short,
        "sent": draw(part) if theme in ("network", "anything") else 0.01,
        "speed": draw(anything if wild else st.sampled_from([10.0, 10.0, 10.5, 20.0])),
        "phases": draw(st.dictionaries(st.sampled_from(["t_data", "t_wait", "t_push", "t_pull"]), part))
        if wild
        else {},
    }


def patterns() -> st.SearchStrategy[list[dict[str, object]]]:
    themes = st.sampled_from(["cpus", "cpus", "idle", "memory", "network", "anything"])
    return themes.flatmap(lambda theme: st.lists(ranks_seen(theme), min_size=6, max_size=6))


@st.composite
def jobs(draw: st.DrawFn) -> Trained:
    roles = {
        name: Kindred(
            count=draw(st.integers(1, 3)),
            seconds=0.1,
            cpus=draw(limit),
            egress=draw(st.sampled_from([None, 100_000, 2_500_000])),
        )
        for name in draw(st.sampled_from([("worker",), ("ps", "worker")]))
    }
    tuning: dict[str, object] = {"mode": "on"}
    if draw(st.booleans()):
        tuning["cpus"] = draw(st.floats(0.05, 30.0))
    if draw(st.booleans()):
        tuning["memory"] = draw(st.sampled_from(["512MiB", "2GiB", "9GiB"]))
    if draw(st.booleans()):
        tuning["memory_min"] = draw(st.sampled_from(["64MiB", "700MiB"]))
    if draw(st.booleans()):
        tuning["egress"] = draw(st.sampled_from(["50KB", "9000KB"]))
    if all(role.egress for role in roles.values()) and draw(st.booleans()):
        tuning["egress_total"] = draw(st.sampled_from(["10KB", "600KB", "20MB"]))
    return Trained(Model(roles=roles), tuning=tuning)


def sampled(job: Trained, seen: list[dict[str, object]], now: float) -> tuple[NodeSampled, ProgressSeen]:
    runs, told = [], []
    for one, what in zip(job.held, seen, strict=False):
        used = float(what["use"]) * one.cpus  # type: ignore[arg-type]
        busiest = what["busiest"]
        key = {"job_id": job.job.id, "epoch": 1, "rank": one.rank}
        runs.append(
            RunSample(
                **key,  # type: ignore[arg-type]
                source="cgroup2",
                cpus_used=used,
                cpus_limit=one.cpus,
                cpu_throttled=what["cpu_throttled"],  # type: ignore[arg-type]
                busiest_thread=None if busiest is None else used * float(busiest),  # type: ignore[arg-type]
                memory_used=int(float(what["memory"]) * one.memory),  # type: ignore[arg-type]
                memory_limit=one.memory,
                memory_failures_rate=what["memory_failures_rate"],  # type: ignore[arg-type]
                major_faults_rate=what["major_faults_rate"],  # type: ignore[arg-type]
                network_send_rate=float(what["sent"]) * (one.egress or 1e6),  # type: ignore[arg-type]
            )
        )
        if what["speed"] is not None:
            pace = Pace(
                window_seconds=1.0,
                steps=5,
                steps_rate=what["speed"],  # type: ignore[arg-type]
                step_seconds=0.1,
                phases=what["phases"],  # type: ignore[arg-type]
            )
            told.append(RunProgressed(**key, progress={}, at=now, pace=pace))  # type: ignore[arg-type]
    host = HostSample(cpus=8.0, memory_total=GIB, memory_used=0)
    job.seq += 1
    sample = NodeSampled(node_id="node-1", pool="default", at=now, host=host, runs=tuple(runs), boot="b", seq=job.seq)
    return sample, ProgressSeen(node_id="node-1", runs=tuple(told))


def egress_of(job: Trained) -> int:
    return sum(one.egress or 0 for one in job.held)


class Lawful:
    """Takes asks, and holds each against what the job had and may have."""

    def __init__(self, job: Trained, growth: float, cpus: float) -> None:
        self.job, self.growth, self.cpus = job, growth, cpus
        self.under_trial: tuple[Tune, Placement] | None = None

    def ask(self, tune: Tune) -> None:
        before = {one.rank: one for one in self.job.held}
        bounds = bounds_of(self.job.job, growth=self.growth)
        undoing = tune.cause.code is CauseCode.ROLLED_BACK
        assert len({limit.rank for limit in tune.ranks}) == len(tune.ranks)
        for limit in tune.ranks:
            one = before[limit.rank]
            assert limit.cpus is None or limit.cpus > 0.0
            if not undoing and limit.memory is not None:
                reclaimed = tune.cause.code is CauseCode.RECLAIMED
                assert (limit.memory < one.memory) is reclaimed
                assert bounds.memory_min[one.role] <= limit.memory <= max(one.memory, bounds.memory[one.role])
            if not undoing and limit.egress is not None:
                assert 0 < limit.egress <= max(one.egress or 0, bounds.egress[one.role] or 0)
        had, sent = sum(one.cpus for one in self.job.held), egress_of(self.job)
        placed = self.job.job.placement
        assert placed is not None
        self.job.take(tune, 0.0)
        has = sum(one.cpus for one in self.job.held)
        if undoing and "needs more" in tune.cause.sentence:  # what it gave
            assert all(limit.memory == 1 << 30 and limit.cpus is None for limit in tune.ranks)
            return
        if undoing:
            assert self.under_trial is not None
            if "as far as there is room" in tune.cause.sentence:
                assert had < has < sum(one.cpus for one in self.under_trial[1].allocations)
                assert has <= self.cpus + 1e-9
                return
            assert self.job.job.placement == self.under_trial[1]
            self.under_trial = None
            return
        self.under_trial = (tune, placed)
        assert has <= max(had, bounds.cpus) + 1e-9
        assert has <= max(had, self.cpus) + 1e-9
        if bounds.egress_total is not None:
            assert egress_of(self.job) <= max(sent, bounds.egress_total)
        if tune.cause.code is not CauseCode.UPSCALED:
            assert has <= had + 1e-9
            assert egress_of(self.job) <= sent


@settings(max_examples=examples(80), deadline=None, phases=QUICK)
@given(jobs(), st.data(), st.floats(1.0, 4.0), st.floats(0.5, 64.0), st.sampled_from([3, 60]))
def test_asks_stay_inside_and_rollbacks_restore(
    job: Trained, data: st.DataObject, growth: float, cpus: float, watched: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MEMORY_WATCHED", watched)
        core = Reallocator(tuning=TuningMode.ON, growth=growth, window_seconds=WINDOW)
        lawful, node, now = Lawful(job, growth, cpus), node_of(cpus), 1000.0
        pattern = data.draw(st.lists(patterns(), min_size=1, max_size=3))
        takes = data.draw(st.lists(st.booleans(), min_size=1, max_size=4))
        for number in range(160):
            now += 1.0
            sample, progress = sampled(job, pattern[(number // 40) % len(pattern)], now)
            core.observe(sample, now=now)
            core.observe(progress, now=now)
            core.learn(jobs=[job.job], nodes=[node], now=now)
            for known in core.decide(now).known:
                core.remembered(known)
                if known.tune is not None and takes[number % len(takes)]:
                    lawful.ask(known.tune)


@settings(max_examples=examples(200), deadline=None, phases=QUICK)
@given(
    st.lists(st.tuples(limit, part, limit), min_size=1, max_size=4),
    st.floats(0.1, 20.0),
)
def test_a_split_stays_inside_its_budget_and_never_loses(rows: list[tuple[float, float, float]], more: float) -> None:
    demands = [
        Demand(role=f"r{number}", given=given, part=part, most=given + most, least=min(given, 0.05))
        for number, (given, part, most) in enumerate(rows)
    ]
    budget = sum(demand.given for demand in demands) + more
    found = best_split(demands, budget)
    assert found.total <= budget * (1 + 1e-6)
    assert found.gain >= -1e-6
    for demand in demands:
        assert demand.least - 1e-9 <= found.by_role[demand.role]


bytes_of_memory = st.integers(1, 1 << 34)
node_names = st.sampled_from(["node-1", "node-2"])


@settings(max_examples=examples(300), deadline=None, phases=QUICK)
@given(
    st.lists(st.tuples(node_names, limit, limit, bytes_of_memory, bytes_of_memory), min_size=1, max_size=5),
    st.dictionaries(node_names, st.tuples(st.floats(0.0, 8.0), st.integers(0, 1 << 35))),
)
def test_what_fits_is_all_that_is_wanted_or_as_much_of_it_as_is_free(
    rows: list[tuple[str, float, float, int, int]], rooms: dict[str, tuple[float, int]]
) -> None:
    held = [
        Allocation(rank=rank, role="worker", node_id=name, cpus=cpus, memory=memory)
        for rank, (name, cpus, _, memory, _) in enumerate(rows)
    ]
    wanted = [
        RankTuning(rank=rank, cpus=cpus + more, memory=memory + much)
        for rank, (_, cpus, more, memory, much) in enumerate(rows)
    ]
    found = that_fits(wanted, held, {name: Free(cpus=cpus, memory=memory) for name, (cpus, memory) in rooms.items()})
    for of_memory in (False, True):
        for name in {has.node_id for has in held}:
            had, asked, given = (
                [_size(one, of_memory) for one, has in zip(ranks, held, strict=True) if has.node_id == name]
                for ranks in (held, wanted, found)
            )
            room = rooms.get(name, (0.0, 0))[of_memory]
            needed = sum(most - before for before, most in zip(had, asked, strict=True))
            if needed <= room:
                assert given == asked
            elif room < PART_MIN * needed:
                assert given == had
            else:
                assert sum(given) - sum(had) <= room + 1e-6
                for before, most, after in zip(had, asked, given, strict=True):
                    assert before <= after <= most


def _size(one: Allocation | RankTuning, of_memory: bool) -> float:
    size = one.memory if of_memory else one.cpus
    assert size is not None
    return size


def test_late_and_doubled_samples_change_nothing() -> None:
    """The same history, once in order and once with every sample said twice and the one before it said again."""

    def asked(*, doubled: bool) -> list[Tune]:
        job = Trained(
            Model(
                roles={
                    "ps": Kindred(count=1, seconds=0.5, cpus=0.4),
                    "worker": Kindred(count=3, seconds=0.05, cpus=0.4),
                }
            )
        )
        core, tunes, before = Reallocator(tuning=TuningMode.ON, growth=1.0), [], None
        for second in range(200):
            now = 1000.0 + second
            sample = job.sampled(now)
            for each in (sample, sample, before) if doubled and before is not None else (sample,):
                core.observe(each, now=now)
            before = sample
            core.observe(job.progressed(now), now=now)
            core.learn(jobs=[job.job], nodes=[node_of()], now=now)
            for known in core.decide(now).known:
                if known.tune is not None:
                    tunes.append(known.tune)
                    job.take(known.tune, now)
        assert core.arrivals.refused == (398 if doubled else 0)
        return tunes

    assert asked(doubled=True) == asked(doubled=False) != []


def test_a_node_with_a_wrong_clock_counts_when_it_is_heard() -> None:
    job = Trained(Model(roles={"worker": Kindred(count=2, seconds=0.3, cpus=0.5)}))
    core = Reallocator(tuning=TuningMode.ADVISE)
    for second in range(60):
        now = 1000.0 + second
        core.observe(structs.replace(job.sampled(now), at=4e9 - second), now=now)
        core.learn(jobs=[job.job], nodes=[node_of()], now=now)
        decided = core.decide(now)
    assert {(one.rank, one.code) for one in decided.verdicts} == {(rank, "cpu-quota-bound") for rank in (-1, 0, 1)}
