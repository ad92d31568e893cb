"""Verdicts on recorded jobs that were starved on purpose: how many are right, and what is taken for what."""

import sys
from collections.abc import Mapping

import msgspec
import pytest

from tests.support.corpus import CORPUS, NOTHING, Head, Line, Recorded, accuracy, concluded, confusion, parse, recorded
from tests.support.trained import Kindred, Model, Trained
from weft.domain.job import Allocation

RIGHT_MIN = 0.95


def shown(found: Mapping[tuple[str, str], int]) -> str:
    """One line for each label: how often each conclusion was drawn."""
    rows = []
    for label in sorted({label for label, _ in found}):
        given = ", ".join(f"{said} {count}" for (of, said), count in sorted(found.items()) if of == label)
        rows.append(f"{label:>18}: {given}")
    return "\n".join(rows)


def test_verdicts_on_the_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    corpus = recorded()
    assert corpus, f"there are no recordings in {CORPUS}"
    found = confusion(corpus)
    with capsys.disabled():
        sys.stdout.write(f"\n{len(corpus)} recordings, {accuracy(found):.1%} right\n{shown(found)}\n")
    assert accuracy(found) >= RIGHT_MIN, shown(found)


def recording(label: str, *, rank: int = -1, seconds: int = 42) -> Recorded:
    """A job of the model whose server is starved, as it would be recorded."""
    roles = {"ps": Kindred(count=1, seconds=0.5, cpus=0.4), "worker": Kindred(count=2, seconds=0.05, cpus=0.4)}
    job = Trained(Model(roles=roles, takes_turns=False))
    ranks: dict[str, Allocation] = {str(one.rank): one for one in job.held}
    head = Head(label=label, scenario="model", job="j-1", epoch=1, began=50.0, rank=rank, ranks=ranks)
    lines = [
        Line(at=float(second), kind=kind, message=message)
        for second in range(100, 100 + seconds)
        for kind, message in (("NodeSampled", job.sampled(second)), ("ProgressSeen", job.progressed(second)))
    ]
    return parse("model", b"\n".join(map(msgspec.json.encode, (head, *lines))))


def test_what_stands_at_the_end_counts() -> None:
    assert concluded(recording("cpu-quota-bound")) == "cpu-quota-bound"
    assert concluded(recording("cpu-quota-bound", rank=0)) == "cpu-quota-bound"
    assert concluded(recording("cpu-quota-bound", seconds=15)) == NOTHING


def test_a_wrong_label_or_role_is_seen() -> None:
    found = confusion([recording("io-bound"), recording("cpu-quota-bound", rank=1)])
    assert accuracy(found) == 0.0
    assert "cpu-quota-bound of ps 1" in shown(found)
