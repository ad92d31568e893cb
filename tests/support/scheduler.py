"""A scheduler's core and the nodes that report to it, in a time that the test moves."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import structs

from tests.support.builders import capacity, job
from tests.support.nodes import ScriptedNode
from weft.domain.arrays import Element
from weft.domain.cluster import Drain, Node
from weft.domain.job import Cause, CauseCode, Job, JobEvent, JobState, Step, after
from weft.domain.labels import Marking
from weft.messages.asks import Ask, AskKind, RankTuning, Reshare, Scale, Tune, Update
from weft.messages.nodes import JobOrder, Leader, StartRun
from weftd.executor.thinking.orders import runs_of
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.core_settings import Settings


class World:
    """A core and the nodes that report to it. Every step is also kept, as a store would keep it."""

    def __init__(self, *nodes: ScriptedNode, settings: Settings | None = None) -> None:
        self.core = Scheduler(pool="default", settings=settings or Settings())
        self.nodes = {one.node_id: one for one in nodes}
        self.core.load(jobs=[], nodes=[], now=0.0)
        self.leader = Leader(pool="default", epoch=1, holder="test", seq=0)
        self.now = 0.0
        self.steps: list[Step] = []
        self.seq = 0
        self.stored: dict[str, Job] = {}  # every job as a store has it, the ended ones too

    def submit(self, job_id: str, *, element: Element | None = None, **fields: Any) -> None:
        """A job; or an element of an array, as the gateway makes it."""
        self.seq += 1
        made = job(job_id, seq=self.seq, since=self.now, **fields)
        if element is not None:
            made = structs.replace(made, spec=structs.replace(made.spec, element=element))
        self.stored[job_id] = made
        self.core.admit([made])

    def ask(
        self,
        kind: AskKind,
        subject_id: str,
        priority: int = 0,
        *,
        job: Job | None = None,
        gpu: int | None = None,
        drain: Drain | None = None,
        marking: Marking | None = None,
    ) -> list[Step]:
        what = {"priority": priority, "gpu": gpu, "drain": drain, "marking": marking}
        ask = Ask(id=1, kind=kind, subject_id=subject_id, tenant="alice", at=self.now, **what)  # type: ignore[arg-type]
        return self.keep(self.core.ask(ask, self.now, job=job))

    def tune(
        self,
        job_id: str,
        *ranks: RankTuning,
        epoch: int | None = None,
        code: CauseCode = CauseCode.UPSCALED,
    ) -> list[Step]:
        """As the reallocator asks it; nothing comes of what is refused."""
        of = self.stored[job_id].epoch if epoch is None else epoch
        asked = Tune(epoch=of, ranks=ranks, cause=Cause(code=code, sentence="it is held back"))
        ask = Ask(id=1, kind=AskKind.TUNE, subject_id=job_id, tenant="weft", at=self.now, tune=asked)
        return self.keep(self.core.ask(ask, self.now))

    def scale(
        self,
        job_id: str,
        *,
        tenant: str = "alice",
        epoch: int | None = None,
        instead_of: int | None = None,
        **size: int,
    ) -> list[Step]:
        """As a user asks it, or the partition planner instead of so many workers; nothing comes of what is refused."""
        asked = Scale(size=size, epoch=epoch, instead_of={} if instead_of is None else {"worker": instead_of})
        ask = Ask(id=1, kind=AskKind.SCALE, subject_id=job_id, tenant=tenant, at=self.now, scale=asked)
        return self.keep(self.core.ask(ask, self.now))

    def update(self, job_id: str, **asked_for: Any) -> list[Step]:
        """As a user asks it, by the fields of Update; nothing comes of what is refused."""
        ask = Ask(id=1, kind=AskKind.UPDATE, subject_id=job_id, tenant="alice", at=self.now, update=Update(**asked_for))
        return self.keep(self.core.ask(ask, self.now))

    def share(self, job_id: str, **asked_for: Any) -> list[Step]:
        """As a user asks it, or the reallocator, by the fields of Reshare; nothing comes of what is refused."""
        asked = Reshare(**asked_for)
        ask = Ask(id=1, kind=AskKind.SHARE, subject_id=job_id, tenant="alice", at=self.now, share=asked)
        return self.keep(self.core.ask(ask, self.now))

    def keep(self, steps: list[Step]) -> list[Step]:
        self.steps += steps
        for step in steps:
            self.stored[step.job_id] = after(self.stored[step.job_id], step)
        self.core.cluster_state.check()
        return steps

    def ended(self, job_id: str) -> Job:
        found = self.stored[job_id]
        assert found.state.final
        return found

    def open_jobs(self) -> list[Job]:
        return [job for job in self.stored.values() if not job.state.final]

    def lead_anew(self, jobs: Iterable[Job], nodes: Iterable[Node], *, went_back_at: float | None = None) -> None:
        """Another leader begins from what the store says."""
        self.core = Scheduler(pool="default", settings=self.core.settings)
        self.leader = structs.replace(self.leader, epoch=self.leader.epoch + 1)
        self.stored.update({one.id: one for one in jobs})
        self.core.load(jobs=jobs, nodes=nodes, now=self.now, went_back_at=went_back_at)

    def tick(self, seconds: float = 1.0) -> list[Step]:
        self.now += seconds
        return self.keep(self.core.decide(self.now))

    def sync(self, node_id: str, *, answered: bool = True) -> list[Step]:
        one = self.nodes[node_id]
        report = one.report()
        if report.leader != self.leader:
            report = structs.replace(report, leader=None)  # as the scheduler loop hands it on
        assert not self.core.report(report, self.now)
        steps = self.keep(self.core.follow(report, self.now))
        steps += self.keep(self.core.decide(self.now))
        desired = self.core.answer(node_id)
        if answered:
            one.hear(desired, now=self.now, leader=self.leader)
        return steps

    def round(self) -> None:
        """Every node syncs often enough that what was decided is done and seen."""
        self.tick()
        for _ in range(3):
            for node_id in self.nodes:
                self.sync(node_id)

    def runs_of(self, node_id: str) -> list[StartRun]:
        """The runs that the node's executor makes from the answer to its newest report, as the wire carries it."""
        orders = msgspec.json.decode(msgspec.json.encode(self.core.answer(node_id)), type=tuple[JobOrder, ...])
        return [run for order in orders for run in runs_of(order)]

    def told(self, job_id: str) -> list[JobEvent]:
        return [step.event for step in self.steps if step.job_id == job_id]

    def state(self, job_id: str) -> JobState:
        kept: Job | None = self.core.cluster_state.jobs.get(job_id)
        return kept.state if kept else [step.to for step in self.steps if step.job_id == job_id][-1]


def world(*, nodes: int = 1, gpus: int = 4, settings: Settings | None = None) -> World:
    made = World(*(ScriptedNode(f"node-{n}", capacity(gpus=gpus)) for n in range(1, nodes + 1)), settings=settings)
    for node_id in made.nodes:
        made.sync(node_id)
    return made
