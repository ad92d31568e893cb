"""The entries of a history: what a leader was given and what it decided, and how a record holds them.

A record holds no specification: the store has each of them once, and a specification may be a megabyte. Where a record
names a job, it has a checksum of the job's specification; `specified` puts the specifications back. Long texts of
updates have marks (`long_texts.py`).
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct, structs

from weft.domain.cluster import Node
from weft.domain.dependencies import Ends
from weft.domain.job import Job
from weft.domain.quotas import Quota
from weft.domain.spec import JobSpec
from weft.messages.asks import Ask
from weft.messages.history import Record
from weft.messages.nodes import JobOrder, NodeReported, NodeSigns, RunSeen
from weft.messages.signals import GpuScore, PairSlowdown, WorkloadClass, WorkloadPenalty
from weft.variability.models import WorkloadRatios
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.record.long_texts import filler, in_ask, in_job, marked

FORMAT = 4  # of a record's body; raised when old readers cannot read it
READS = (1, 2, 3, 4)  # records of format 1 hold the specification of every job, those of 1 and 2 the texts of updates
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
    penalties: tuple[WorkloadPenalty, ...] = ()
    ratios: tuple[WorkloadRatios, ...] = ()


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
    signs: NodeSigns | None = None


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


class PenaltiesLearnt(Struct, frozen=True, array_like=True, tag=18):
    """New locality penalties of workloads."""

    penalties: tuple[WorkloadPenalty, ...]


class RatiosLearnt(Struct, frozen=True, array_like=True, tag=19):
    """New ratios between the speeds of workloads on models of GPUs."""

    ratios: tuple[WorkloadRatios, ...]


class QuotasSet(Struct, frozen=True, array_like=True, tag=16):
    """Other quotas are in force."""

    at: float
    quotas: tuple[Quota, ...]


class EndsTold(Struct, frozen=True, array_like=True, tag=15):
    """The stored state of the jobs and arrays that other jobs wait for."""

    ends: tuple[Ends, ...]
    at: float


class Decided(Struct, frozen=True, array_like=True, tag=10):
    """The decision that ended a cycle: all steps and all changes of nodes of the cycle."""

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
    | PenaltiesLearnt
    | RatiosLearnt
    | QuotasSet
    | EndsTold
    | Decided
    | NotStored
    | Answered
)

encode = msgspec.msgpack.Encoder().encode
_ENTRIES = msgspec.msgpack.Decoder(list[Entry])


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


def by_reference(entry: Entry, checksum: Callable[[Job], int]) -> Entry:
    """The entry without specifications, with their checksums instead, and without long texts of updates."""
    match entry:
        case Loaded() | CoreSnapshot() | Admitted():
            checksums = tuple(checksum(job) for job in entry.jobs)
            return structs.replace(entry, jobs=tuple(map(_referred, entry.jobs)), checksums=checksums)
        case Asked(ask, job=Job() as job):
            return structs.replace(entry, ask=in_ask(ask, marked), job=_referred(job), checksum=checksum(job))
        case Asked(ask):
            return structs.replace(entry, ask=in_ask(ask, marked))
        case _:
            return entry


def specified(entry: Entry, specs: Mapping[str, JobSpec]) -> Entry:
    """The entry with the specifications of its jobs. Raises SpecificationError."""
    match entry:
        case Loaded() | CoreSnapshot() | Admitted() if entry.checksums:
            pairs = zip(entry.jobs, entry.checksums, strict=True)
            return structs.replace(entry, jobs=tuple(_specified(job, checksum, specs) for job, checksum in pairs))
        case Asked(ask, job=Job() as job, checksum=int() as checksum):
            return structs.replace(entry, ask=in_ask(ask, filler), job=_specified(job, checksum, specs))
        case Asked(ask):
            return structs.replace(entry, ask=in_ask(ask, filler))
        case _:
            return entry


def _referred(job: Job) -> Job:
    return in_job(structs.replace(job, spec=_ELSEWHERE), marked)


def _specified(job: Job, checksum: int, specs: Mapping[str, JobSpec]) -> Job:
    spec = specs.get(job.id)
    if spec is None:
        raise SpecificationError(f"the specification of {job.id} is not stored any more")
    if checksum_of(spec) != checksum:
        raise SpecificationError(f"the specification of {job.id} has changed since the record")
    return in_job(structs.replace(job, spec=spec), filler)


def changed_since(report: NodeReported, before: NodeReported, node: int) -> Changed | Repeated:
    """The report of the node of this number, as its changes since the previous one."""
    ahead = report.seq - before.seq
    if (report.runs, report.leaving, report.signs) == (before.runs, before.leaving, before.signs):
        return Repeated(node, ahead)
    runs = tuple(_told(run, index, before.runs) for index, run in enumerate(report.runs))
    return Changed(node, ahead, report.leaving, runs, report.signs)


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
    return structs.replace(
        before, seq=before.seq + changed.seq, leaving=changed.leaving, runs=runs, signs=changed.signs
    )


def _run_of(told: int | Ticked | RunSeen, before: Sequence[RunSeen]) -> RunSeen:
    match told:
        case RunSeen():
            return told
        case int():
            return before[told]
        case (index, progress):
            return structs.replace(before[index], progress=progress)


def digest_of(orders: Iterable[JobOrder], before: int = 0) -> int:
    """The digest of an answer: its runs and their GPUs. All else of a run follows from its job."""
    runs = [(order.job_id, order.epoch, rank.rank, rank.gpus) for order in orders for rank in order.ranks]
    return zlib.crc32(encode(runs), before)


def entries_of(record: Record) -> list[Entry]:
    """The entries of a record, without specifications.

    Raises zlib.error or msgspec.DecodeError if no journal wrote the record.
    """
    return _ENTRIES.decode(zlib.decompress(record.body))
