"""The history: a leader's input and its decisions, in order, so that the decisions can be derived again.

The desk calls the core through a `Journal`, which passes on every call and keeps it as an entry. The entries become a
`Record`, stored with the steps that follow from them. `replay.py` reads the records.

A record holds no specification: the store has each of them once, and a specification may be a megabyte. Where a record
names a job, it has a checksum of the job's specification; `specified` puts the specifications back.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct, structs

from libs.domain.cluster import Node
from libs.domain.dependencies import Ends
from libs.domain.job import Job, Step
from libs.domain.quotas import Quota
from libs.domain.spec import JobSpec
from libs.messages.asks import Ask
from libs.messages.history import Record
from libs.messages.nodes import NodeReported, RunSeen, StartRun
from libs.messages.signals import GpuScore, PairSlowdown, WorkloadClass
from services.scheduler.thinking.core import Scheduler, Settings
from services.scheduler.thinking.keeping import pickled
from services.scheduler.thinking.pool import NodeChange

FORMAT = 2  # of a record's body; raised when old readers cannot read it
READS = (1, 2)  # records of format 1 hold the specification of every job
LEVEL = 1  # zlib's fastest: compression runs between deciding and storing
LARGE = 500  # a record of more jobs than this is encoded outside the event loop

_ELSEWHERE = JobSpec(name="elsewhere")  # the stand-in for a job's specification in a record


class Loaded(Struct, frozen=True, array_like=True, tag=0):
    """The contents of the store when the leader loaded them."""

    pool: str
    settings: Settings
    jobs: tuple[Job, ...]
    nodes: tuple[Node, ...]
    scores: tuple[GpuScore, ...]
    now: float
    went_back_at: float | None = None
    classes: tuple[WorkloadClass, ...] = ()
    checksums: tuple[int, ...] = ()  # of the jobs' specifications, in the order of the jobs
    held_until: float | None = None
    quotas: tuple[Quota, ...] = ()
    used: dict[str, float] = {}
    slowdowns: tuple[PairSlowdown, ...] = ()


class Began(Struct, frozen=True, array_like=True, tag=2):
    at: float


class Admitted(Struct, frozen=True, array_like=True, tag=3):
    jobs: tuple[Job, ...]
    checksums: tuple[int, ...] = ()


class Asked(Struct, frozen=True, array_like=True, tag=4):
    ask: Ask
    job: Job | None
    checksum: int | None = None


class Reported(Struct, frozen=True, array_like=True, tag=5):
    """A node's first report. Later entries name the node by a number: how many nodes reported before it."""

    report: NodeReported


Ticked: TypeAlias = tuple[int, dict[str, float]]
"""The index of a run in the previous report, and its new progress."""


class Changed(Struct, frozen=True, array_like=True, tag=6):
    """A report, as its changes since the node's previous one. A number in `runs` is the index of an unchanged run."""

    node: int
    seq: int  # the increase since the previous report
    leaving: bool
    runs: tuple[int | Ticked | RunSeen, ...]


class Repeated(Struct, frozen=True, array_like=True, tag=7):
    node: int
    seq: int  # the increase since the previous report


class Followed(Struct, frozen=True, array_like=True, tag=8):
    node: int


class Rescored(Struct, frozen=True, array_like=True, tag=9):
    scores: tuple[GpuScore, ...]


class Learnt(Struct, frozen=True, array_like=True, tag=12):
    classes: tuple[WorkloadClass, ...]


class Slowed(Struct, frozen=True, array_like=True, tag=17):
    """All that is known of how jobs of two classes slow each other down on one GPU."""

    slowdowns: tuple[PairSlowdown, ...]


class QuotasSet(Struct, frozen=True, array_like=True, tag=16):
    """Other quotas are in force."""

    at: float
    quotas: tuple[Quota, ...]


class EndsTold(Struct, frozen=True, array_like=True, tag=15):
    """What the store said of the jobs and arrays that other jobs wait for."""

    ends: tuple[Ends, ...]
    at: float


class Decided(Struct, frozen=True, array_like=True, tag=10):
    """The decision that ended a turn: all steps and all changes of nodes of the turn."""

    steps: msgspec.Raw = msgspec.Raw(b"\x90")
    changes: msgspec.Raw = msgspec.Raw(b"\x90")


class NotStored(Struct, frozen=True, array_like=True, tag=13):
    """The store refused the step from this version of a job; `steps` replaced it."""

    job_id: str
    version: int
    at: float
    steps: msgspec.Raw = msgspec.Raw(b"\x90")


class Answered(Struct, frozen=True, array_like=True, tag=11):
    """Nodes were answered; `digest` is of the runs in all these answers."""

    nodes: tuple[int, ...]
    digest: int


class CoreSnapshot(Struct, frozen=True, array_like=True, tag=1):
    """The whole state of the core, as bytes of `keeping.py`. After a snapshot nodes are numbered anew.

    `before`: entries up to the snapshot that no earlier record has, for a replay that began further back and goes on
    with its own core. The core refers to its `jobs` by id.
    """

    core: bytes
    before: tuple[Answered | Rescored, ...]
    jobs: tuple[Job, ...] = ()
    checksums: tuple[int, ...] = ()


Entry: TypeAlias = (
    Loaded
    | CoreSnapshot
    | Began
    | Admitted
    | Asked
    | Reported
    | Changed
    | Repeated
    | Followed
    | Rescored
    | Learnt
    | Slowed
    | QuotasSet
    | EndsTold
    | Decided
    | NotStored
    | Answered
)

encode = msgspec.msgpack.Encoder().encode
_ENTRIES = msgspec.msgpack.Decoder(list[Entry])


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

    One turn: `begin`, the input, `decide`, `draft` for the record to store with the steps, `stored` after that;
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
    ) -> None:
        """Begin from the store, as leader of this epoch. Entries not stored are dropped: no stored step needs them."""
        self.core.load(
            jobs=jobs,
            nodes=nodes,
            scores=scores,
            classes=classes,
            slowdowns=slowdowns,
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
        self.core.picture.rescore(scores)
        self._flush_answers()
        self._entries.append(Rescored(tuple(scores)))

    def learn(self, classes: Sequence[WorkloadClass], now: float) -> None:
        self.core.picture.learn(classes, now)
        self._flush_answers()
        self._entries.append(Learnt(tuple(classes)))

    def slow(self, slowdowns: Sequence[PairSlowdown]) -> None:
        self.core.picture.slow(slowdowns)
        self._flush_answers()
        self._entries.append(Slowed(tuple(slowdowns)))

    def limit(self, quotas: Sequence[Quota], now: float) -> None:
        self.core.picture.limit(quotas, now)
        self._flush_answers()
        self._entries.append(QuotasSet(now, tuple(quotas)))

    def tell_ends(self, found: Sequence[Ends], now: float) -> None:
        self.core.tell_ends(found, now)
        self._entries.append(EndsTold(tuple(found), now))

    def decide(self, now: float) -> tuple[list[Step], list[NodeChange]]:
        """The steps that the core decides now, and every change of a node in this turn."""
        steps = self._made(self.core.decide(now))
        changes = self.core.take_node_changes()
        if self._steps or changes:
            self._entries.append(Decided(msgspec.Raw(encode(self._steps)), msgspec.Raw(encode(changes))))
        else:
            self._entries.append(Decided())
        self._decided += len(self._steps)
        return steps, changes

    def not_stored(self, step: Step, now: float) -> list[Step]:
        """The steps that replace a step of this turn that the store refused."""
        steps = self.core.not_stored(step.job_id, step.version, now)
        self._decided += len(steps)
        self._entries.append(NotStored(step.job_id, step.version, now, msgspec.Raw(encode(steps))))
        return steps

    def answer(self, node_id: str) -> tuple[StartRun, ...]:
        runs = self.core.answer(node_id)
        self._answered.append(self._known[node_id])
        self._digest = digest_of(runs, self._digest)
        return runs

    # records

    def due(self, now: float) -> bool:
        """Is it time to store entries that led to no step?"""
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
            turns=self._turns,
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
            assert len(before) == len(self._entries), "more was told between two turns than can be"
            self._open(CoreSnapshot(pickled(self.core), before, tuple(self.core.picture.jobs.values())), now)

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
        rest = structs.replace(report, seq=before.seq, runs=before.runs, leaving=before.leaving)
        if rest != before:
            del self._reports[report.node_id]  # another executor or machine: it gets a new number
            return self._reported(report)
        ahead = report.seq - before.seq
        if report.runs == before.runs and report.leaving == before.leaving:
            return Repeated(number, ahead)
        runs = tuple(_told(run, index, before.runs) for index, run in enumerate(report.runs))
        return Changed(number, ahead, report.leaving, runs)


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
        entries = [self._by_reference(entry) for entry in self._entries]
        return structs.replace(self._record, body=zlib.compress(encode(entries), LEVEL))

    def _by_reference(self, entry: Entry) -> Entry:
        """The entry without specifications, with their checksums instead."""
        match entry:
            case Loaded() | CoreSnapshot() | Admitted():
                jobs = tuple(structs.replace(job, spec=_ELSEWHERE) for job in entry.jobs)
                return structs.replace(entry, jobs=jobs, checksums=tuple(self._checksum(job) for job in entry.jobs))
            case Asked(job=Job() as job):
                return structs.replace(entry, job=structs.replace(job, spec=_ELSEWHERE), checksum=self._checksum(job))
            case _:
                return entry

    def _checksum(self, job: Job) -> int:
        known = self._checksums.get(job.id)
        if known is None:
            known = self._checksums[job.id] = checksum_of(job.spec)
        return known


class SpecificationError(Exception):
    """The specification of a job in a record is not stored any more, or has changed."""


def checksum_of(spec: JobSpec) -> int:
    return zlib.crc32(encode(spec))


def jobs_of(entry: Entry) -> tuple[Job, ...]:
    """The jobs that an entry holds."""
    match entry:
        case Loaded() | CoreSnapshot() | Admitted():
            return entry.jobs
        case Asked(job=Job() as job):
            return (job,)
        case _:
            return ()


def specified(entry: Entry, specs: Mapping[str, JobSpec]) -> Entry:
    """The entry with the specifications of its jobs. Raises SpecificationError."""
    match entry:
        case Loaded() | CoreSnapshot() | Admitted() if entry.checksums:
            pairs = zip(entry.jobs, entry.checksums, strict=True)
            return structs.replace(entry, jobs=tuple(_specified(job, checksum, specs) for job, checksum in pairs))
        case Asked(job=Job() as job, checksum=int() as checksum):
            return structs.replace(entry, job=_specified(job, checksum, specs))
        case _:
            return entry


def _specified(job: Job, checksum: int, specs: Mapping[str, JobSpec]) -> Job:
    spec = specs.get(job.id)
    if spec is None:
        raise SpecificationError(f"the specification of {job.id} is not stored any more")
    if checksum_of(spec) != checksum:
        raise SpecificationError(f"the specification of {job.id} is another than it was")
    return structs.replace(job, spec=spec)


def _told(run: RunSeen, index: int, before: Sequence[RunSeen]) -> int | Ticked | RunSeen:
    if index >= len(before):
        return run
    if run == before[index]:
        return index
    if structs.replace(run, progress=before[index].progress) == before[index]:
        return (index, run.progress)
    return run


def report_of(changed: Changed | Repeated, before: NodeReported) -> NodeReported:
    """The full report, from its changes since the previous one."""
    if isinstance(changed, Repeated):
        return structs.replace(before, seq=before.seq + changed.seq)
    runs = tuple(_run_of(run, before.runs) for run in changed.runs)
    return structs.replace(before, seq=before.seq + changed.seq, leaving=changed.leaving, runs=runs)


def _run_of(told: int | Ticked | RunSeen, before: Sequence[RunSeen]) -> RunSeen:
    match told:
        case RunSeen():
            return told
        case int():
            return before[told]
        case (index, progress):
            return structs.replace(before[index], progress=progress)


def digest_of(runs: Iterable[StartRun], before: int = 0) -> int:
    """The digest of an answer: its runs and their GPUs. All else of a run follows from its job."""
    return zlib.crc32(encode([(run.job_id, run.epoch, run.rank, run.gpus) for run in runs]), before)


def entries_of(record: Record) -> list[Entry]:
    """The entries of a record, without specifications.

    Raises zlib.error or msgspec.DecodeError if no journal wrote the record.
    """
    return _ENTRIES.decode(zlib.decompress(record.body))
