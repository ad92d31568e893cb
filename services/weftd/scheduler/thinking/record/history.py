"""The history: a leader's input and its decisions, in order, so that the decisions can be derived again.

The scheduler loop calls the core through a `Journal`, which passes on every call and keeps it as an entry
(`entries.py`). The entries become a `Record`, stored with the steps that follow from them. `replay.py` reads the
records.
"""

import zlib
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct, structs

from weft.domain.cluster import Node
from weft.domain.dependencies import Ends
from weft.domain.job import Job, Step
from weft.domain.quotas import Quota
from weft.messages.asks import Ask
from weft.messages.history import Record
from weft.messages.nodes import JobOrder, NodeReported
from weft.messages.signals import GpuScore, PairSlowdown, WorkloadClass, WorkloadPenalty
from weft.variability.models import WorkloadRatios
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.record.entries import (
    FORMAT,
    Admitted,
    Answered,
    Asked,
    Began,
    CoreSnapshot,
    Decided,
    EndsTold,
    Entry,
    Followed,
    Learnt,
    Loaded,
    NotStored,
    PenaltiesLearnt,
    QuotasSet,
    RatiosLearnt,
    Reported,
    Rescored,
    Slowed,
    by_reference,
    changed_since,
    checksum_of,
    digest_of,
    encode,
    jobs_of,
)
from weftd.scheduler.thinking.record.keeping import pickled
from weftd.scheduler.thinking.record.long_texts import in_steps, marked
from weftd.scheduler.thinking.state.pool import NodeChange

LEVEL = 1  # zlib's fastest: compression runs between deciding and storing
LARGE = 500  # a record of more jobs than this is encoded outside the event loop


class JournalPace(Struct, frozen=True, kw_only=True):
    """How long the journal may hold entries that led to no step, and how often it writes a snapshot.

    A snapshot costs by its size: the next one waits until the records since then are as large as the last one.
    """

    quiet_seconds: float = 10.0
    entries_max: int = 20_000
    begin_bytes: int = 16 << 20
    begin_seconds: float = 3600.0


class HistoryRetention(Struct, frozen=True, kw_only=True):
    """The retention of a pool's history, by age and by size; the oldest record kept begins with a full state."""

    seconds: float = 7 * 86400.0
    bytes: int = 1 << 30


class Journal:
    """Passes every call on to the core, and keeps it as an entry until it is stored.

    One cycle: `begin`, the input, `decide`, `draft` for the record to store with the steps, `stored` after that;
    then `answer`.
    """

    def __init__(self, core: Scheduler, *, pace: JournalPace | None = None) -> None:
        self.core = core
        self._pace = pace or JournalPace()
        self._entries: list[Entry] = []
        self._known: dict[str, int] = {}
        self._reports: dict[str, NodeReported] = {}  # the last of each node
        self._numbers = 0
        self._steps: list[Step] = []
        self._answered: list[int] = []
        self._digest = 0
        self._epoch, self._number = 0, 1
        self._at = self._until = 0.0
        self._turns = self._decided = 0
        self._begun_at, self._bytes, self._beginning = 0.0, 0, 0
        self._checksums: dict[str, int] = {}  # of the specification, by job that a record named

    # calls of the core

    def load(
        self,
        *,
        jobs: Sequence[Job],
        nodes: Sequence[Node],
        scores: Sequence[GpuScore],
        now: float,
        epoch: int,
        went_back_at: float | None = None,
        classes: Sequence[WorkloadClass] = (),
        held_until: float | None = None,
        quotas: Sequence[Quota] = (),
        used: Mapping[str, float] | None = None,
        slowdowns: Sequence[PairSlowdown] = (),
        penalties: Sequence[WorkloadPenalty] = (),
        ratios: Sequence[WorkloadRatios] = (),
    ) -> None:
        """Begin from the store, as leader of this epoch. Entries not stored are dropped: no stored step needs them."""
        self.core.load(
            jobs=jobs,
            nodes=nodes,
            scores=scores,
            classes=classes,
            slowdowns=slowdowns,
            penalties=penalties,
            ratios=ratios,
            quotas=quotas,
            used=used,
            now=now,
            went_back_at=went_back_at,
            held_until=held_until,
        )
        # The previous record may have been stored without an answer, so its number is not used again.
        self._epoch, self._number = epoch, self._number + 1 if epoch == self._epoch else 1
        loaded = Loaded(
            pool=self.core.pool,
            settings=self.core.settings,
            jobs=tuple(jobs),
            nodes=tuple(nodes),
            scores=tuple(scores),
            now=now,
            went_back_at=went_back_at,
            classes=tuple(classes),
            held_until=held_until,
            quotas=tuple(quotas),
            used=dict(used or {}),
            slowdowns=tuple(slowdowns),
            penalties=tuple(penalties),
            ratios=tuple(ratios),
        )
        self._open(loaded, now)

    def begin(self, now: float) -> None:
        enough = max(self._pace.begin_bytes, self._beginning)
        if self._bytes >= enough or now - self._begun_at >= self._pace.begin_seconds:
            self._keep(now)
        self._flush_answers()
        if not self._turns:
            self._at = now
        self._until = now
        self._turns += 1
        self._steps = []
        self.core.begin_turn()
        self._entries.append(Began(now))

    def admit(self, jobs: Sequence[Job]) -> None:
        self.core.admit(jobs)
        if jobs:
            self._entries.append(Admitted(tuple(jobs)))

    def ask(self, ask: Ask, now: float, *, job: Job | None) -> list[Step]:
        self._entries.append(Asked(ask, job))
        return self._made(self.core.ask(ask, now, job=job))

    def report(self, report: NodeReported, now: float) -> str:
        self._entries.append(self._reported(report))
        return self.core.report(report, now)

    def follow(self, report: NodeReported, now: float) -> list[Step]:
        self._entries.append(Followed(self._known[report.node_id]))
        return self._made(self.core.follow(report, now))

    def rescore(self, scores: Sequence[GpuScore]) -> None:
        self.core.cluster_state.rescore(scores)
        self._flush_answers()
        self._entries.append(Rescored(tuple(scores)))

    def learn(self, classes: Sequence[WorkloadClass], now: float) -> None:
        self.core.cluster_state.learn(classes, now)
        self._flush_answers()
        self._entries.append(Learnt(tuple(classes)))

    def slow(self, slowdowns: Sequence[PairSlowdown]) -> None:
        self.core.cluster_state.slow(slowdowns)
        self._flush_answers()
        self._entries.append(Slowed(tuple(slowdowns)))

    def learn_penalties(self, penalties: Sequence[WorkloadPenalty]) -> None:
        self.core.cluster_state.learn_penalties(penalties)
        self._flush_answers()
        self._entries.append(PenaltiesLearnt(tuple(penalties)))

    def learn_ratios(self, ratios: Sequence[WorkloadRatios]) -> None:
        self.core.cluster_state.learn_ratios(ratios)
        self._flush_answers()
        self._entries.append(RatiosLearnt(tuple(ratios)))

    def limit(self, quotas: Sequence[Quota], now: float) -> None:
        self.core.cluster_state.limit(quotas, now)
        self._flush_answers()
        self._entries.append(QuotasSet(now, tuple(quotas)))

    def tell_ends(self, found: Sequence[Ends], now: float) -> None:
        self.core.tell_ends(found, now)
        self._entries.append(EndsTold(tuple(found), now))

    def decide(self, now: float) -> tuple[list[Step], list[NodeChange]]:
        """The steps that the core decides now, and every change of a node in this cycle."""
        steps = self._made(self.core.decide(now))
        changes = self.core.take_node_changes()
        if self._steps or changes:
            made = encode(in_steps(self._steps, marked))
            self._entries.append(Decided(msgspec.Raw(made), msgspec.Raw(encode(changes))))
        else:
            self._entries.append(Decided())
        self._decided += len(self._steps)
        return steps, changes

    def not_stored(self, step: Step, now: float) -> list[Step]:
        """The steps that replace a step of this cycle that the store refused."""
        steps = self.core.not_stored(step.job_id, step.version, now)
        self._decided += len(steps)
        self._entries.append(NotStored(step.job_id, step.version, now, msgspec.Raw(encode(in_steps(steps, marked)))))
        return steps

    def answer(self, node_id: str) -> tuple[JobOrder, ...]:
        orders = self.core.answer(node_id)
        self._answered.append(self._known[node_id])
        self._digest = digest_of(orders, self._digest)
        return orders

    # records

    def due(self, now: float) -> bool:
        """Return True if entries that led to no step should be stored now."""
        return len(self._entries) >= self._pace.entries_max or now - self._at >= self._pace.quiet_seconds

    def draft(self) -> "Draft":
        """A draft of the record of all calls and decisions since the last record."""
        self._flush_answers()
        first = self._entries[0]
        if isinstance(first, Loaded | CoreSnapshot):
            known = {job.id for job in first.jobs}
            self._checksums = {job_id: self._checksums[job_id] for job_id in known & self._checksums.keys()}
        record = Record(
            epoch=self._epoch,
            number=self._number,
            format=FORMAT,
            begins=isinstance(first, Loaded | CoreSnapshot),
            at=self._at,
            until=self._until,
            cycles=self._turns,
            steps=self._decided,
            body=b"",
        )
        return Draft(record, tuple(self._entries), self._checksums)

    def stored(self, record: Record) -> None:
        """`record` is stored: begin the next one."""
        self._number += 1
        if record.begins:
            self._beginning = len(record.body)
        else:
            self._bytes += len(record.body)
        self._clear([], record.until)

    def _keep(self, now: float) -> None:
        """Begin with a snapshot of the core, so that older records can be deleted."""
        if not self._turns:
            self._flush_answers()
            before = tuple(entry for entry in self._entries if isinstance(entry, Answered | Rescored))
            assert len(before) == len(self._entries), "more was told between two cycles than can be"
            self._open(CoreSnapshot(pickled(self.core), before, tuple(self.core.cluster_state.jobs.values())), now)

    def _open(self, first: Loaded | CoreSnapshot, now: float) -> None:
        self._known, self._reports, self._numbers = {}, {}, 0
        self._begun_at, self._bytes, self._beginning = now, 0, 0
        self._clear([first], now)

    def _clear(self, entries: list[Entry], now: float) -> None:
        self._entries, self._answered, self._digest = entries, [], 0
        self._at = self._until = now
        self._turns = self._decided = 0

    def _made(self, steps: list[Step]) -> list[Step]:
        self._steps += steps
        return steps

    def _flush_answers(self) -> None:
        if self._answered:
            self._entries.append(Answered(tuple(self._answered), self._digest))
            self._answered, self._digest = [], 0

    def _reported(self, report: NodeReported) -> Entry:
        before, self._reports[report.node_id] = self._reports.get(report.node_id), report
        if before is None:
            self._known[report.node_id] = self._numbers
            self._numbers += 1
            return Reported(report)
        number = self._known[report.node_id]
        rest = structs.replace(report, seq=before.seq, runs=before.runs, leaving=before.leaving, signs=before.signs)
        if rest != before:
            del self._reports[report.node_id]  # another executor or machine: it gets a new number
            return self._reported(report)
        return changed_since(report, before, number)


class Draft:
    """A record that is not encoded yet. Its contents do not change, so a thread may encode a large one."""

    def __init__(self, record: Record, entries: Sequence[Entry], checksums: dict[str, int]) -> None:
        self._record = record
        self._entries = entries
        self._checksums = checksums

    @property
    def large(self) -> bool:
        return sum(len(jobs_of(entry)) for entry in self._entries) > LARGE

    def encoded(self) -> Record:
        entries = [by_reference(entry, self._checksum) for entry in self._entries]
        return structs.replace(self._record, body=zlib.compress(encode(entries), LEVEL))

    def _checksum(self, job: Job) -> int:
        known = self._checksums.get(job.id)
        if known is None:
            known = self._checksums[job.id] = checksum_of(job.spec)
        return known
