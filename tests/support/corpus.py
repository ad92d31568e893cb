"""The recorded corpus, played to the production code: what it concludes of each job, held against its label.

A file is one job: its first line a `Head`, then a `Line` for each message that was heard of it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from weft.domain.job import Allocation, Job, JobState, Placement
from weft.domain.spec import JobSpec, Role
from weft.messages.nodes import ProgressSeen
from weft.messages.signals import NodeSampled
from weft.samples.arrivals import Arrivals
from weft.tuning.cause import StandingVerdicts, Stood, judge
from weft.tuning.verdict import Verdict
from weft.tuning.window import WINDOW_SECONDS, Gathering, JobWindow

CORPUS = Path(__file__).parents[1] / "corpus"
KINDS = {"NodeSampled": NodeSampled, "ProgressSeen": ProgressSeen}
NOTHING = "no verdict"
LATE_SECONDS = 1.5  # by which a last window may be short: samples come once a second


class Head(Struct, frozen=True, kw_only=True):
    """What was done to which rank of the job (-1: to none in particular), and of its placement what a tuner knows."""

    label: str
    scenario: str
    job: str
    epoch: int
    began: float  # when all of it ran, on the clock of `at`
    rank: int
    ranks: dict[str, Allocation]


class Line(Struct, frozen=True, kw_only=True):
    """One message, `at` the second since the epoch at which it was heard."""

    at: float
    kind: str
    message: Any


class Recorded(Struct, frozen=True, kw_only=True):
    name: str
    head: Head
    heard: tuple[tuple[float, NodeSampled | ProgressSeen], ...]


def read(path: Path) -> Recorded:
    return parse(path.stem, path.read_bytes())


def parse(name: str, recording: bytes) -> Recorded:
    first, *lines = recording.splitlines()
    heard = []
    for text in lines:
        line = msgspec.json.decode(text, type=Line)
        heard.append((line.at, msgspec.convert(line.message, KINDS[line.kind])))
    return Recorded(name=name, head=msgspec.json.decode(first, type=Head), heard=tuple(heard))


def recorded(folder: Path = CORPUS) -> list[Recorded]:
    return [read(path) for path in sorted(folder.glob("*.jsonl"))]


def windows(of: Recorded) -> Iterator[JobWindow]:
    """As the reallocator closes them."""
    gathering, arrivals = Gathering(), Arrivals()
    job = _job(of.head)
    gathering.follow(job, now=of.head.began)
    begin, end = of.heard[0][0], of.heard[-1][0]
    gathering.close(job.id, now=begin)  # what was before is not recorded
    due = begin + WINDOW_SECONDS
    for at, message in of.heard:
        while at > due:
            if (window := gathering.close(job.id, now=due)) is not None:
                yield window
            due += WINDOW_SECONDS
        match message:
            case NodeSampled():
                if arrivals.take(message, heard_at=at):
                    gathering.hear(message)
            case ProgressSeen():
                gathering.hear_progress(message, now=at)
    if end > due - LATE_SECONDS and (window := gathering.close(job.id, now=due)) is not None:
        yield window


def stood(of: Recorded) -> Stood | None:
    """What stands of the job at the end."""
    standing = StandingVerdicts()
    for window in windows(of):
        standing.take(judge(window), at=window.ended)
    return standing.job


def concluded(of: Recorded) -> str:
    """The verdict at the end, and of whom where that is not whom it was done to: then it is a mistake all the same."""
    found = stood(of)
    if found is None:
        return NOTHING
    code = str(found.reading.code)
    if of.head.rank < 0 or found.rank < 0 or found.rank == of.head.rank:
        return code
    role = of.head.ranks[str(found.rank)].role
    if role != of.head.ranks[str(of.head.rank)].role:
        return f"{code} of {role}"
    return f"{code} of rank {found.rank}" if of.head.label == Verdict.STRAGGLER else code  # a straggler is just one


def confusion(corpus: Iterable[Recorded]) -> Mapping[tuple[str, str], int]:
    """How often (label, conclusion) came together."""
    return Counter((one.head.label, concluded(one)) for one in corpus)


def accuracy(pairs: Mapping[tuple[str, str], int]) -> float:
    return sum(count for (label, code), count in pairs.items() if label == code) / max(1, sum(pairs.values()))


def wrong(corpus: Iterable[Recorded]) -> list[str]:
    """Each that was concluded otherwise than it was made, with what was said."""
    told = []
    for one in corpus:
        if (said := concluded(one)) != one.head.label:
            found = stood(one)
            why = f": {found.reading.sentence}" if found else ""
            told.append(f"{one.name} ({one.head.scenario}): {said}{why}")
    return told


def _job(head: Head) -> Job:
    held = tuple(head.ranks[rank] for rank in sorted(head.ranks, key=int))
    roles = {one.role: Role(cpus=one.cpus) for one in held}
    return Job(
        id=head.job,
        tenant="corpus",
        spec=JobSpec(name="recorded", command=("true",), roles=roles),
        seq=1,
        submitted_at=head.began,
        state=JobState.RUNNING,
        epoch=head.epoch,
        since=head.began,
        placement=Placement(allocations=held),
    )
