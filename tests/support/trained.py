"""A training job as arithmetic: how fast it is with what its ranks have, and what a node would measure of them.

`Turns`: workers compute, then servers do, and so on: the times add up. `Overlap`: steps so short, or so asynchronous,
that the slowest role alone counts. Who would use more than its limit is throttled.
"""

import random
from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from tests.support.builders import GIB, job, node
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobState, Placement
from weft.domain.sizes import how_resized
from weft.domain.spec import ResizeHow, TuningMode
from weft.messages.asks import Scale, Tune
from weft.messages.nodes import Pace, ProgressSeen, RunProgressed
from weft.messages.signals import HostSample, NodeSampled, RunSample
from weftd.reallocator.thinking.core import Reallocator, TuningDecision

START = 1000.0


class Kindred(Struct, frozen=True, kw_only=True):
    """All ranks of one role: CPU seconds of each per step, threads that can be busy at once, what each has at first."""

    count: int
    seconds: float
    most: int | None = None  # replicas that the job may have
    threads: float = 1.0
    cpus: float = 1.0
    memory: int = GIB
    sends: float = 0.0  # bytes per step
    egress: int | None = None


class Model(Struct, frozen=True, kw_only=True):
    roles: Mapping[str, Kindred]
    takes_turns: bool = True
    other_seconds: float = 0.0  # of each step: what no CPU makes shorter
    samples_per_step: float = 64.0
    working_set: int = GIB // 2  # of each rank; with less memory it reads pages again

    def step_seconds(self, held: Sequence[Allocation]) -> float:
        times = self._times(held)
        slowest = max(times.values()) if not self.takes_turns else sum(times.values())
        alone = sum(one.seconds / one.threads for one in self.roles.values()) if not self.takes_turns else 0.0
        return max(slowest, alone / 2) + self.other_seconds + self.sending(held) + self._thrashing(held)

    def _times(self, held: Sequence[Allocation]) -> dict[str, float]:
        found: dict[str, float] = {}
        for one in held:
            role = self.roles[one.role]
            found[one.role] = max(found.get(one.role, 0.0), role.seconds / min(one.cpus, role.threads))
        return found

    def sending(self, held: Sequence[Allocation]) -> float:
        return max((self.roles[one.role].sends / one.egress for one in held if one.egress), default=0.0)

    def _thrashing(self, held: Sequence[Allocation]) -> float:
        return sum(max(0.0, self.working_set / one.memory - 1.0) for one in held)

    def allocations(self, node_id: str = "node-1") -> tuple[Allocation, ...]:
        made: list[Allocation] = []
        for name, role in self.roles.items():
            for _ in range(role.count):
                made.append(
                    Allocation(
                        rank=len(made),
                        role=name,
                        node_id=node_id,
                        cpus=role.cpus,
                        memory=role.memory,
                        egress=role.egress,
                    )
                )
        return tuple(made)

    def best_seconds(self, budget: float, parts: int = 200) -> float:
        """The fastest step with so many cores in all, two roles at most: an oracle that tries them all."""
        names = list(self.roles)
        held = self.allocations()
        best = float("inf")
        for number in range(1, parts):
            share = {names[0]: budget * number / parts, names[-1]: budget * (parts - number) / parts}
            if len(names) == 1:
                share = {names[0]: budget}
            tried = [structs.replace(one, cpus=share[one.role] / self.roles[one.role].count) for one in held]
            best = min(best, self.step_seconds(tried))
        return best


class Trained:
    """One job that runs by a model, in virtual time, on one node."""

    def __init__(
        self,
        model: Model,
        *,
        job_id: str = "j-1",
        seed: int = 0,
        noise: float = 0.01,
        tuning: object = None,
        **fields: object,
    ) -> None:
        self.model = model
        self.noise = noise
        self.dice = random.Random(seed)
        roles = {
            name: {
                "replicas": {"want": role.count, **({"min": 1, "max": role.most} if role.most else {})},
                "cpus": role.cpus,
                "memory": f"{role.memory}B",
                **({"egress": f"{role.egress}B"} if role.egress else {}),
            }
            for name, role in model.roles.items()
        }
        made = job(job_id, spec={"roles": roles, "tuning": tuning or {"mode": "on"}, **fields})
        placement = Placement(allocations=model.allocations())
        self.job: Job = structs.replace(made, state=JobState.RUNNING, epoch=1, started_at=START, placement=placement)
        self.seq = 0
        self.steps = 0.0  # so far, as of `told_at`
        self.told_at = 0.0
        self.changed_at = -1000.0

    @property
    def held(self) -> tuple[Allocation, ...]:
        assert self.job.placement is not None
        return self.job.placement.allocations

    @property
    def speed(self) -> float:
        return self.model.samples_per_step / self.model.step_seconds(self.held)

    def take(self, tune: Tune, now: float) -> None:
        """What a scheduler does with an ask."""
        assert self.job.placement is not None
        assert tune.epoch == self.job.epoch
        by_rank = {limit.rank: limit for limit in tune.ranks}
        held = tuple(
            one
            if (limit := by_rank.get(one.rank)) is None
            else structs.replace(
                one,
                cpus=one.cpus if limit.cpus is None else limit.cpus,
                memory=one.memory if limit.memory is None else limit.memory,
                egress=one.egress if limit.egress is None else limit.egress,
            )
            for one in self.held
        )
        placement = structs.replace(self.job.placement, allocations=held)
        self.job = structs.replace(self.job, placement=placement, version=self.job.version + 1)
        self.changed_at = now

    def scale(self, size: Mapping[str, int]) -> None:
        """It should have another size; `resize` gives it that."""
        self.job = structs.replace(self.job, size={**self.job.wanted, **size}, version=self.job.version + 1)

    def resize(self, now: float) -> None:
        """What a scheduler does for a job that resizes live: the newest leave, others join with fresh ranks."""
        assert self.job.placement is not None
        held, fresh = list(self.held), self.job.placement.fresh_rank
        for role, count in self.job.wanted.items():
            of_role = [one for one in held if one.role == role]
            for one in of_role[count:]:
                held.remove(one)
            asked = self.job.spec.roles[role]
            for _ in range(count - len(of_role)):
                new = structs.replace(
                    of_role[0],
                    rank=fresh,
                    cpus=asked.cpus,
                    memory=asked.memory_bytes,
                    egress=asked.egress_bytes,
                    extra=True,
                )
                held.append(new)
                fresh += 1
        placement = Placement(allocations=tuple(held), ranks_used=fresh)
        self.job = structs.replace(self.job, placement=placement, sized_at=now, version=self.job.version + 1)

    def restarted(self, now: float) -> None:
        """The same of a job that restarts: it runs with its size, in the next epoch."""
        self.resize(now)
        held = tuple(structs.replace(one, rank=rank, extra=False) for rank, one in enumerate(self.held))
        self.job = structs.replace(
            self.job,
            state=JobState.RUNNING,
            epoch=self.job.epoch + 1,
            placement=Placement(allocations=held),
            sized_at=None,
            placed_at=now,
            started_at=now,
        )

    def sampled(self, now: float) -> NodeSampled:
        self.seq += 1
        step = self.model.step_seconds(self.held)
        runs = tuple(self._run(one, step) for one in self.held)
        host = HostSample(cpus=64.0, cpus_used=8.0, memory_total=256 * GIB, memory_used=GIB)
        return NodeSampled(
            node_id="node-1", pool="default", at=now, host=host, runs=runs, boot=self.job.id, seq=self.seq
        )

    def progressed(self, now: float, window: float = 10.0) -> ProgressSeen:
        step = self.model.step_seconds(self.held) * self._noise()
        self.steps += max(0.0, now - self.told_at) / step
        self.told_at = now
        own = {name: role.seconds / role.threads for name, role in self.model.roles.items()}
        runs = tuple(
            RunProgressed(
                job_id=self.job.id,
                epoch=self.job.epoch,
                rank=one.rank,
                progress=self._counted(one.role),
                at=now,
                pace=Pace(
                    window_seconds=window,
                    steps=max(2, int(window / step)),
                    steps_rate=1.0 / step,
                    samples_rate=self.model.samples_per_step / step if one.role == "worker" else None,
                    step_seconds=own[one.role],
                    phases=self._phases(one),
                ),
            )
            for one in self.held
        )
        return ProgressSeen(node_id="node-1", runs=runs)

    def _counted(self, role: str) -> dict[str, float]:
        samples = {"samples": self.steps * self.model.samples_per_step} if role == "worker" else {}
        return {"step": self.steps, **samples}

    def _phases(self, one: Allocation) -> dict[str, float]:
        """Told by those whose network matters."""
        sending = self.model.sending(self.held)
        return {"t_push" if self.model.roles[one.role].sends else "t_pull": sending} if sending else {}

    def _run(self, one: Allocation, step: float) -> RunSample:
        role = self.model.roles[one.role]
        used = min(role.seconds / step, one.cpus) * self._noise()
        throttled = 0.0
        if self.model.takes_turns:
            throttled = 0.95 if one.cpus < role.threads * 0.999 else 0.0
        elif role.seconds / one.cpus >= 0.97 * step and one.cpus < role.threads * 0.999:
            throttled = 0.9
        short = self.model.working_set > one.memory
        return RunSample(
            job_id=self.job.id,
            epoch=self.job.epoch,
            rank=one.rank,
            source="cgroup1",
            cpus_used=min(used, one.cpus),
            cpu_throttled=throttled * self._noise() if throttled else self.dice.random() * 0.01,
            cpus_limit=one.cpus,
            busiest_thread=min(used, one.cpus) / role.threads,
            memory_used=min(self.model.working_set, one.memory),
            memory_limit=one.memory,
            memory_failures_rate=50.0 if short else 0.0,
            major_faults_rate=500.0 if short else 0.0,
            network_send_rate=role.sends / step,
            network_receive_rate=role.sends / step,
        )

    def _noise(self) -> float:
        return max(0.5, self.dice.gauss(1.0, self.noise))


def node_of(cpus: float = 64.0) -> object:
    made = node("node-1")
    return structs.replace(made, capacity=structs.replace(made.capacity, cpus=cpus))


class Pool:
    """One node, its jobs, a reallocator, and a scheduler that does at once what it is asked, or what `refuses` not."""

    def __init__(
        self,
        *jobs: Trained,
        cpus: float = 64.0,
        growth: float = 1.0,
        tuning: TuningMode = TuningMode.ON,
        **settings: object,
    ) -> None:
        self.jobs = {one.job.id: one for one in jobs}
        self.node = node_of(cpus)
        self.settings = {"tuning": tuning, "growth": growth, **settings}
        self.core = Reallocator(**self.settings)  # type: ignore[arg-type]
        self.now = START
        self.tunes: list[tuple[float, Tune]] = []
        self.gained: list[Cause] = []  # of changes that were kept
        self.scales: list[tuple[float, Scale]] = []
        self.refuses = False  # to do what it is asked
        self.full = False  # no replica joins
        self.store_refuses = False
        self.stored: dict[str, tuple[int, bytes]] = {}
        self.decided = TuningDecision()

    def run(self, seconds: int) -> "Pool":
        for _ in range(seconds):
            self.second()
        return self

    def second(self) -> None:
        self.now += 1.0
        for one in self.jobs.values():
            if one.job.state is not JobState.RUNNING:
                continue
            self.core.observe(one.sampled(self.now), now=self.now)
            self.core.observe(one.progressed(self.now), now=self.now)
        self.core.learn(jobs=[one.job for one in self.jobs.values()], nodes=[self.node], now=self.now)
        self.decided = self.core.decide(self.now)
        for known in self.decided.known:
            if self.store_refuses and known.cause is not None:
                self.core.not_asked(known.job_id)
                continue
            self.stored[known.job_id] = (known.epoch, known.state)
            self.core.remembered(known)
            if known.tune is not None and known.tune.cause.code is CauseCode.KEPT:
                self.gained.append(known.tune.cause)
            elif known.tune is not None:
                self.tunes.append((self.now - START, known.tune))
                if not self.refuses:
                    self.jobs[known.job_id].take(known.tune, self.now)
            if known.scale is not None:
                self.scales.append((self.now - START, known.scale))
                self._scale(self.jobs[known.job_id], known.scale)

    def _scale(self, one: Trained, scale: Scale) -> None:
        assert scale.epoch == one.job.epoch
        if self.refuses:
            return
        one.scale(scale.size)
        if how_resized(one.job.spec) is ResizeHow.RESTART and one.job.granted != one.job.wanted:
            one.job = structs.replace(one.job, state=JobState.STOPPING, worked=one.job.granted, since=self.now)
        elif not self.full or any(count < one.job.granted[role] for role, count in one.job.wanted.items()):
            one.resize(self.now)

    def restart(self) -> None:
        """The process dies; another begins with what is stored."""
        self.core = Reallocator(**self.settings)  # type: ignore[arg-type]
        for job_id, (epoch, state) in self.stored.items():
            self.core.recall(job_id, epoch=epoch, state=state, now=self.now)

    @property
    def sizes(self) -> list[tuple[dict[str, int], CauseCode]]:
        return [(scale.size, scale.cause.code) for _, scale in self.scales if scale.cause is not None]

    @property
    def codes(self) -> list[CauseCode]:
        return [tune.cause.code for _, tune in self.tunes]

    def verdict(self, job_id: str = "j-1") -> str:
        return next(one.code for one in self.decided.verdicts if (one.job_id, one.rank) == (job_id, -1))
