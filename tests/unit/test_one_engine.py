"""The scheduler's core and the simulator decide alike: the same random history goes to both, and after every decision
each job holds the same GPUs, stops, or waits in both, and the same nodes are kept.

Jobs arrive, end, are pre-empted, begin again, wait out their patience, in every order and with every backfill; GPUs,
priorities, tenants, checkpoints and time limits are drawn. Half of the histories have quotas: guarantees, limits, and
a tenant without a quota. In half of them jobs fail, and are tried again after a while. The simulator says when work is
done, and when it looks at its cluster; the core looks at the same times. In most histories some jobs resize live: they
start with as many ranks as fit, grow to their size and onto GPUs that idle, and give ranks back. Every size, every rank
that joins or leaves, and its GPU, is the same in both. In half of the histories GPUs differ in speed, and jobs move:
which job, when, whereto, and what is kept for it meanwhile are the same.

No history has these, which the simulator lacks: more than one role, shares, pins, services, an ask of a user, and a
stop that is not over in the same moment. Nodes do not fail here, nor do jobs that resize live: the core lets such a job
go back to the size before. A duration is known by the estimate of all work there, by the limit of one try
here: they are the same for rigid jobs without checkpoints on GPUs that are equally fast, so only those have one. Speeds
are powers of two, so that all times are exact.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from msgspec import Struct, structs

from tests.support.builders import capacity
from tests.support.nodes import ScriptedNode
from tests.support.scheduler import World as LiveWorld
from tests.support.tier import of_tier
from tests.support.topologies import topology
from weft.domain.classes import CLASS_LABEL, JOB_CLASSES
from weft.domain.job import Allocation, JobState
from weft.domain.quotas import ALL, Quota
from weft.domain.shares import WHOLE
from weft.domain.spec import Retries
from weft.messages.signals import GpuScore
from weft.planning.moves import MoveRules
from weft.planning.policy import BACKFILLS, ORDERS, Policy
from weft.simulator.engine import Simulation
from weft.simulator.event_queue import What
from weft.simulator.model import Cluster, World
from weft.simulator.pool import node_id
from weft.simulator.workload import Elastic, TraceJob, Workload
from weftd.scheduler.thinking.core_settings import Settings

HISTORIES, NIGHTLY = 200, 10_000
CHUNKS = 100  # histories in one test, of the night
FOUND = (1641, 2419, 2847)
FAILS = -1  # marks the arrival of a job's failure among those of jobs
RETRIES = Retries(max=1000)
STAY = MoveRules(on=False, cost_seconds=0.0)

Held = dict[str, frozenset[tuple[str, int]]]


class Seen(Struct, frozen=True, kw_only=True):
    """A cluster after a decision: the GPUs of the jobs that run, the jobs that stop, the GPUs of ranks that leave, the
    nodes that are kept, and the GPUs that are kept for jobs that move."""

    now: float
    held: Held
    stopping: frozenset[str]
    leaving: frozenset[tuple[str, str, int]]
    kept: tuple[str, ...]
    targets: Held


class History(Struct, frozen=True, kw_only=True):
    jobs: tuple[TraceJob, ...]
    cluster: Cluster
    policy: Policy
    quotas: tuple[Quota, ...] = ()
    failures: tuple[tuple[float, str], ...] = ()  # when a job fails, if it runs then
    penalty: float = 1.0
    moves: MoveRules = STAY


def drawn(seed: int, *, elastic: bool = True, moves: bool = True) -> History:
    dice = Random(seed)
    cluster = Cluster(nodes=dice.randint(1, 5), gpus_per_node=dice.choice((1, 2, 4, 8)))
    policy = Policy(dice.choice(ORDERS), dice.choice(("packed-sticky", "spread")), dice.choice(BACKFILLS))
    hurry = dice.choice((5.0, 60.0, 400.0))
    jobs: list[TraceJob] = []
    at = 1000
    for number in range(dice.randint(4, 24)):
        at += round(dice.expovariate(1.0) * hurry)
        gpus = dice.randint(1, min(cluster.gpus, dice.choice((1, 2, 4, 40))))
        work = float(dice.choice((20, 300, 900, 2000, 9000)) + dice.randint(0, 50))
        checkpoints = dice.choice((None, None, 0.0, 600.0))
        limit = work * dice.choice((1, 2)) if checkpoints is None and dice.random() < 0.5 else None
        jobs.append(
            TraceJob(
                id=f"j-{number:03d}",
                arrival_s=float(at),
                gpus=gpus,
                work_s=work,
                checkpoint_s=checkpoints,
                tenant=dice.choice(("alice", "bob", "carol")),
                priority=dice.choice((0, 0, 0, 1, 2)),
                estimate_s=limit,
            )
        )
    quotas = _quotas(dice, jobs, cluster.gpus)
    rigid = History(jobs=tuple(jobs), cluster=cluster, policy=policy, quotas=quotas, failures=_failures(dice, jobs))
    history = _made_elastic(rigid, Random(-1 - seed)) if elastic else rigid
    return _made_uneven(history, Random(f"uneven {seed}")) if moves and seed % 2 else history


def _made_uneven(history: History, dice: Random) -> History:
    """GPUs are not equally fast, and gangs across nodes are slower: jobs that write checkpoints gain by moving."""
    gpus, slow, times = history.cluster.gpus, dice.choice((0.2, 0.5, 0.8)), dice.choice((1, 2, 4))
    scores = {
        name: tuple(dice.choice((2.0, 4.0)) if dice.random() < slow else 1.0 for _ in range(gpus))
        for name in ("compute", "memory")
    }
    jobs = tuple(
        structs.replace(
            job,
            arrival_s=times * job.arrival_s,
            job_class=dice.choice(tuple(scores)),
            checkpoint_s=dice.choice((0.0, 64.0)) if dice.random() < 0.9 else job.checkpoint_s,
            estimate_s=None,
        )
        for job in history.jobs
    )
    return structs.replace(
        history,
        jobs=jobs,
        cluster=structs.replace(
            history.cluster, scores={name: scores.get(name, (1.0,) * gpus) for name in JOB_CLASSES}
        ),
        policy=structs.replace(history.policy, placement="weft-best"),
        penalty=dice.choice((1.0, 2.0)),
        moves=MoveRules(
            margin=dice.choice((1.0, 2.0)),
            at_once_max=dice.choice((1, 2, 4)),
            cost_seconds=dice.choice((0.0, 8.0, 64.0)),
            every_seconds=dice.choice((1.0, 10.0, 64.0)),
        ),
    )


def _made_elastic(history: History, dice: Random) -> History:
    """Some jobs resize live; in some histories more GPUs idle."""
    part, times = dice.choice((0.0, 0.3, 0.9)), dice.choice((1, 1, 4))
    jobs = tuple(
        structs.replace(
            job,
            arrival_s=times * job.arrival_s,
            **({"elastic": _elastic(dice, job.gpus, history.cluster.gpus), "estimate_s": None} if lucky else {}),
        )
        for job, lucky in [(job, dice.random() < part) for job in history.jobs]
    )
    rigid = {job.id for job in jobs if job.elastic is None}
    failures = tuple((times * at, job_id) for at, job_id in history.failures if job_id in rigid)
    return structs.replace(history, jobs=jobs, failures=failures)


def _elastic(dice: Random, asked: int, most: int) -> Elastic:
    """It is as fast with each size, so that all times are whole seconds."""
    return Elastic(
        asked=asked,
        least=dice.randint(1, asked),
        most=dice.randint(asked, max(asked, min(most, 2 * asked + 2))),
        each=(1.0, 1.0, 1.0),
        exponent=0.0,
        live=True,
        resize_s=0.0,
    )


def _quotas(dice: Random, jobs: Sequence[TraceJob], gpus: int) -> tuple[Quota, ...]:
    """No limit is below what a job of the tenant needs: the job would wait for ever."""
    if dice.random() < 0.5:
        return ()
    found: list[Quota] = []
    for name in ("alice", "bob"):
        count = dice.randint(0, gpus // 2)
        least = max([1, count, *(job.gpus for job in jobs if job.tenant == name)])
        limit = {ALL: dice.randint(least, gpus) * WHOLE} if dice.random() < 0.5 else {}
        found.append(Quota(name=name, guaranteed={ALL: count * WHOLE} if count else {}, limit=limit))
    return tuple(found)


def _failures(dice: Random, jobs: Sequence[TraceJob]) -> tuple[tuple[float, str], ...]:
    if dice.random() < 0.5:
        return ()
    rigid = [job for job in jobs if job.elastic is None]
    of = [dice.choice(rigid) for _ in range(dice.randint(1, 3 * len(jobs)))] if rigid else []
    return tuple((job.arrival_s + dice.randint(0, 3000) + 0.5, job.id) for job in of)


class _Watched(Simulation):
    """A simulation that notes its cluster after each decision, and which jobs were over, or failed, before it."""

    def __init__(self, history: History) -> None:
        world = World(
            penalty=history.penalty,
            move_s=history.moves.cost_seconds,
            grace_s=0.0,
            stop_s=0.0,
            quotas=history.quotas,
            moves=history.moves,
        )
        super().__init__(Workload(name="drawn", jobs=history.jobs), history.cluster, history.policy, world)
        self.seen: list[tuple[frozenset[str], frozenset[str], Seen]] = []
        self._failed: set[str] = set()
        self._attempts: Counter[str] = Counter()
        numbers = {job.id: number for number, job in enumerate(history.jobs)}
        for at, job_id in history.failures:
            self._event_queue.add(at, What.ARRIVES, numbers[job_id], FAILS)
        self._decides, self._deciding.decide = self._deciding.decide, self._decide  # type: ignore[method-assign]

    def _happens(self, now: float, what: What, number: int, version: int) -> bool:
        if what is not What.ARRIVES or version != FAILS:
            return super()._happens(now, what, number, version)
        job, job_id = self._jobs[number], self._jobs[number].trace.id
        self._lives.running.now = now
        if job.allocations and not job.leaves:
            self._lives.evict(job, now, stopped=False)
            self._lives.queue.remove(job_id)
            self._failed.add(job_id)
            self._attempts[job_id] += 1
            again_at = round(now + RETRIES.wait_seconds(self._attempts[job_id]), 6)
            self._event_queue.add(again_at, What.ARRIVES, number)
        return True

    def _decide(self, now: float) -> None:
        over = frozenset(job.id for job in self._lives.ended.values())
        self._decides(now)
        running = self._lives.running.jobs
        seen = Seen(
            now=now,
            held={job_id: frozenset(job.gpus) for job_id, job in running.items() if not job.leaves},
            stopping=frozenset(job_id for job_id, job in running.items() if job.leaves),
            leaving=frozenset(
                (job_id, one.node_id, gpu)
                for job_id, job in running.items()
                for one in job.allocations
                for gpu in one.gpus
                if one.leaving and not job.leaves
            ),
            kept=self._deciding.cycle.reserved,
            targets={job_id: _gpus_in(place) for job_id, place in self._lives.kept.items()},
        )
        self.seen.append((over, frozenset(self._failed), seen))
        self._failed.clear()


class _Live:
    """The scheduler's core with nodes that obey at once."""

    def __init__(self, history: History) -> None:
        self._jobs = list(history.jobs)
        has = structs.replace(
            capacity(gpus=history.cluster.gpus_per_node, cpus=1024), topology=history.cluster.topology
        )
        nodes = [ScriptedNode(node_id(number), has) for number in range(history.cluster.nodes)]
        settings = Settings(
            policy=history.policy,
            locality_penalty=history.penalty,
            moves=history.moves,
            preemption_after_seconds=World().minimum_run.seconds,
            lease_seconds=1e9,
            start_seconds=1e9,
        )
        self._world = LiveWorld(*nodes, settings=settings)
        self._world.core.cluster_state.limit(history.quotas, 0.0)
        self._world.core.cluster_state.rescore(_scores(history.cluster))
        self._over: set[str] = set()
        self._settle()

    def looks(self, now: float, over: frozenset[str], failed: frozenset[str]) -> Seen:
        """Its cluster after its decision at this time, once these jobs have ended, and these have failed."""
        world = self._world
        while self._jobs and self._jobs[0].arrival_s <= now:
            world.now = self._jobs[0].arrival_s
            self._submit(self._jobs.pop(0))
        world.now = now
        for job_id in (over - self._over) | failed:
            for node in world.nodes.values():
                for key in [key for key in node.runs if key[0] == job_id]:
                    node.end(key, 1 if job_id in failed else 0)
        self._over |= over
        self._settle()
        world.keep(world.core.decide(now))
        jobs = world.core.cluster_state.jobs.values()
        seen = Seen(
            now=now,
            held={
                job.id: frozenset((one.node_id, gpu) for one in job.held for gpu in one.gpus)
                for job in jobs
                if job.state.holding and job.state is not JobState.STOPPING
            },
            stopping=frozenset(job.id for job in jobs if job.state is JobState.STOPPING),
            leaving=frozenset(
                (job.id, one.node_id, gpu)
                for job in jobs
                for one in job.held
                for gpu in one.gpus
                if one.leaving and job.state is not JobState.STOPPING
            ),
            kept=world.core._waiting.cycle.reserved,
            targets={job_id: _gpus_in(place) for job_id, place in world.core.cluster_state.pool.kept.items()},
        )
        self._settle()
        return seen

    def _submit(self, job: TraceJob) -> None:
        spec: dict[str, Any] = {
            "priority": job.priority,
            "grace": "0s",
            "labels": {CLASS_LABEL: job.job_class},
            "role": {"cpus": 1, "memory": "1MiB"},
            "retries": {"max": 1000},
        }
        if job.estimate_s is not None:
            spec["time_limit"] = f"{job.estimate_s:g}s"
        if job.checkpoint_s is not None:
            spec["checkpoints"] = {"every": f"{job.checkpoint_s:g}s"} if job.checkpoint_s else {"on_stop": True}
        if job.elastic is not None:
            sizes = {"min": job.elastic.least, "want": job.elastic.asked, "max": job.elastic.most}
            spec |= {"resize": {"how": "live"}, "role": {**spec["role"], "replicas": sizes}}
        self._world.submit(job.id, tenant=job.tenant, replicas=job.gpus, spec=spec)

    def _settle(self) -> None:
        """Nodes report and are answered until nothing follows."""
        for _ in range(4):
            if not self._changes():
                break

    def _changes(self) -> bool:
        """Let each node report and be answered once. True: a job or a run is not as it was before."""
        world, changes = self._world, False
        for name, node in world.nodes.items():
            report, before = node.report(), node.runs.copy()
            if report.leader != world.leader:
                report = structs.replace(report, leader=None)
            assert not world.core.report(report, world.now)
            if steps := world.core.follow(report, world.now):
                world.keep(steps)
            node.hear(world.core.answer(name), now=world.now, leader=world.leader)
            changes |= bool(steps) or node.runs != before
        return changes


def _scores(cluster: Cluster) -> list[GpuScore]:
    return [
        GpuScore(node_id=node_id(gpu // each), gpu_index=gpu % each, job_class=name, score=score)
        for each in (cluster.gpus_per_node,)
        for name, scores in cluster.scores.items()
        for gpu, score in enumerate(scores)
    ]


def _gpus_in(place: Sequence[Allocation]) -> frozenset[tuple[str, int]]:
    return frozenset((one.node_id, gpu) for one in place for gpu in one.gpus)


def differences(history: History) -> Iterator[str]:
    """The decisions after which the two clusters differ, the first one first."""
    simulated, live = _Watched(history), _Live(history)
    simulated.run()
    for over, failed, seen in simulated.seen:
        if (other := live.looks(seen.now, over, failed)) != seen:
            yield f"{history.policy} at {seen.now:g}:\n simulated {seen}\n live      {other}"


@pytest.mark.parametrize("chunk", of_tier(range(HISTORIES // CHUNKS), range(NIGHTLY // CHUNKS)))
def test_the_scheduler_and_the_simulator_decide_alike(chunk: int) -> None:
    for seed in range(chunk * CHUNKS, (chunk + 1) * CHUNKS):
        found = next(differences(drawn(seed)), None)
        assert found is None, f"history {seed}, {found}"


@pytest.mark.parametrize("seed", FOUND)
def test_the_histories_in_which_they_once_differed_or_never_ended(seed: int) -> None:
    assert next(differences(drawn(seed)), None) is None


@pytest.mark.parametrize("name", ["pcie-8", "dgx1-8"])
def test_the_scheduler_and_the_simulator_choose_the_same_gpus_by_their_links(name: str) -> None:
    chosen = set()
    for seed in range(20):
        history = drawn(seed, moves=False)
        jobs = tuple(structs.replace(job, gpus=min(job.gpus, 8), estimate_s=None) for job in history.jobs)
        cluster = Cluster(nodes=history.cluster.nodes, gpus_per_node=8, topology=topology(name))
        policy = Policy(history.policy.order, "weft-best", history.policy.backfill)
        history = History(jobs=jobs, cluster=cluster, policy=policy, penalty=1.7)
        found = next(differences(history), None)
        assert found is None, f"history {seed}, {found}"
        flat = structs.replace(history, cluster=structs.replace(cluster, topology=None))
        for each in (history, flat):
            simulated = _Watched(each)
            simulated.run()
            chosen.add((seed, *(tuple(sorted(seen.held.items())) for *_, seen in simulated.seen)))
    assert len(chosen) > 30, "the links made no difference"


@pytest.mark.parametrize("seed", [134, 423, 495])
def test_histories_in_which_they_differed_once(seed: int) -> None:
    """134: what a promoted job had; 423 and 495: a tenant whose rank fell while another's job started."""
    assert next(differences(structs.replace(drawn(seed, elastic=False, moves=False), failures=())), None) is None


@pytest.mark.parametrize("seed", [2060, 2477, 5202, 5774])
def test_histories_of_the_night_in_which_they_differed_once(seed: int) -> None:
    """2477: room that is about to be free, in an order that pre-empts nobody. The others: a time, or an attained
    service, was off by the rounding error of a sum."""
    assert next(differences(drawn(seed, moves=False)), None) is None


def test_a_tier_changes_in_both_at_the_same_microsecond() -> None:
    """History 50: the core missed the time by the rounding error of a sum, and let a job run on."""
    assert next(differences(drawn(50, elastic=False, moves=False)), None) is None


def test_histories_have_what_they_are_to_compare() -> None:
    jobs = waits = stops = keeps = failures = grown = shrinks = beyond = moves = across = 0
    for seed in range(40):
        simulated = _Watched(drawn(seed))
        simulated.run()
        elastic = {job.id: job.elastic for job in drawn(seed).jobs if job.elastic is not None}
        sizes = [{one: len(seen.held.get(one, ())) for one in elastic} for *_, seen in simulated.seen]
        grown += sum(0 < had[one] < has[one] for had, has in pairwise(sizes) for one in elastic)
        beyond += sum(has[one] > sized.asked for has in sizes for one, sized in elastic.items())
        shrinks += sum(bool(seen.leaving) for *_, seen in simulated.seen)
        jobs += len(simulated.seen[-1][0])
        stops += sum(len(seen.stopping) for *_, seen in simulated.seen)
        keeps += sum(bool(seen.kept) for *_, seen in simulated.seen)
        waits += sum(len(seen.held) < len(drawn(seed).jobs) for *_, seen in simulated.seen)
        failures += sum(len(failed) for _, failed, _ in simulated.seen)
        moves += sum(job.moves for job in simulated._lives.ended.values())
        across += sum(len(seen.targets) > 1 for *_, seen in simulated.seen)
    assert min(jobs, waits) > 100
    assert min(failures, stops, keeps, grown, shrinks, beyond, moves) > 20
    assert across > 10, "jobs that move together"
