"""Verdicts on recorded jobs that were starved on purpose: how many are right, and what is taken for what."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from libs.domain.job import Allocation, Job, JobState, Placement
from libs.domain.spec import JobSpec, Role
from libs.messages import Message
from libs.messages.nodes import ProgressSeen
from libs.messages.signals import NodeSampled
from libs.samples.arrivals import Arrivals
from libs.tuning.cause import Standing, judge
from libs.tuning.window import WINDOW_SECONDS, Gathering
from tests.support.trained import Kindred, Model, Trained

CORPUS = Path(__file__).parents[1] / "corpus"
RIGHT_MIN = 0.95
LATE_SECONDS = 1.5  # by which the last window may be short: samples come once a second
KINDS: dict[str, type[Message]] = {"NodeSampled": NodeSampled, "ProgressSeen": ProgressSeen}


class Opening(Struct, frozen=True, kw_only=True):
    """The first line of a recording. `rank`: the one it was done to, -1 for none in particular."""

    label: str
    scenario: str
    job: str
    epoch: int
    began: float
    rank: int
    ranks: dict[str, Allocation]

    @property
    def ran(self) -> Job:
        held = tuple(self.ranks[rank] for rank in sorted(self.ranks, key=int))
        roles = {one.role: Role(cpus=one.cpus) for one in held}
        return Job(
            id=self.job,
            tenant="corpus",
            spec=JobSpec(name="recorded", command=("true",), roles=roles),
            seq=1,
            submitted_at=self.began,
            state=JobState.RUNNING,
            epoch=self.epoch,
            placement=Placement(allocations=held),
        )


class Line(Struct, frozen=True):
    at: float
    kind: str
    message: msgspec.Raw


def verdict(lines: Iterable[bytes]) -> tuple[str, str]:
    """The label, and what stands at the end of a recording: of another role than it was done to, it is said so."""
    lines = iter(lines)
    opening = msgspec.json.decode(next(lines), type=Opening)
    job, arrivals, gathering, standing = opening.ran, Arrivals(), Gathering(), Standing()
    gathering.follow(job, now=opening.began)
    due: float | None = None
    last = 0.0
    for text in lines:
        line = msgspec.json.decode(text, type=Line)
        if due is None:  # what was before is not recorded
            gathering.close(job.id, now=line.at)
            due = line.at + WINDOW_SECONDS
        while line.at > due:
            _close(gathering, standing, job.id, due)
            due += WINDOW_SECONDS
        message = msgspec.json.decode(line.message, type=KINDS[line.kind])
        if isinstance(message, ProgressSeen):
            gathering.hear_progress(message, now=line.at)
        elif isinstance(message, NodeSampled) and arrivals.take(message, heard_at=line.at):
            gathering.hear(message)
        if due - line.at < LATE_SECONDS:
            last = due
    if due is not None and last == due:
        _close(gathering, standing, job.id, due)
    stood = standing.job
    if stood is None:
        return opening.label, "none"
    code = stood.reading.code.value
    elsewhere = opening.rank >= 0 and stood.rank >= 0 and stood.role != opening.ranks[str(opening.rank)].role
    return opening.label, f"{code} of {stood.role}" if elsewhere else code


def _close(gathering: Gathering, standing: Standing, job_id: str, at: float) -> None:
    if (window := gathering.close(job_id, now=at)) is not None:
        standing.take(judge(window), at=at)


def confusion(found: Counter[tuple[str, str]]) -> str:
    """One line for each label: how often each verdict was given."""
    labels = sorted({label for label, _ in found})
    rows = []
    for label in labels:
        given = ", ".join(f"{said} {count}" for (of, said), count in sorted(found.items()) if of == label)
        rows.append(f"{label:>18}: {given}")
    return "\n".join(rows)


def accuracy(found: Counter[tuple[str, str]]) -> float:
    return sum(count for (label, said), count in found.items() if label == said) / sum(found.values())


def test_verdicts_on_the_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(CORPUS.glob("*.jsonl"))
    if not files:
        pytest.skip("no recordings in tests/corpus: they are made on real containers")
    found: Counter[tuple[str, str]] = Counter()
    for path in files:
        with path.open("rb") as lines:
            found[verdict(lines)] += 1
    with capsys.disabled():
        sys.stdout.write(f"\n{len(files)} recordings, {accuracy(found):.1%} right\n{confusion(found)}\n")
    assert accuracy(found) >= RIGHT_MIN, confusion(found)


def recording(label: str, *, rank: int = -1, seconds: int = 42) -> Iterator[bytes]:
    """A job of the model whose server is starved, as it would be recorded."""
    roles = {"ps": Kindred(count=1, seconds=0.5, cpus=0.4), "worker": Kindred(count=2, seconds=0.05, cpus=0.4)}
    job = Trained(Model(roles=roles, takes_turns=False))
    ranks = {str(one.rank): one for one in job.held}
    opening = Opening(label=label, scenario="model", job="j-1", epoch=1, began=50.0, rank=rank, ranks=ranks)
    yield msgspec.json.encode(opening)
    for second in range(100, 100 + seconds):
        for kind, message in (("NodeSampled", job.sampled(second)), ("ProgressSeen", job.progressed(second))):
            yield msgspec.json.encode({"at": float(second), "kind": kind, "message": message})


def test_what_stands_at_the_end_counts() -> None:
    assert verdict(recording("cpu-quota-bound")) == ("cpu-quota-bound",) * 2
    assert verdict(recording("cpu-quota-bound", rank=0)) == ("cpu-quota-bound",) * 2
    assert verdict(recording("cpu-quota-bound", seconds=15)) == ("cpu-quota-bound", "none")


def test_a_wrong_label_or_role_is_seen() -> None:
    found = Counter([verdict(recording("io-bound")), verdict(recording("cpu-quota-bound", rank=1))])
    assert accuracy(found) == 0.0
    assert "cpu-quota-bound of ps 1" in confusion(found)
