"""docs/contract.md: each clause has a number of its own and names what holds it; and how the benchmark judges."""

import re
from pathlib import Path

import pytest

from tests.bench.contract.clauses import CLAUSES, check_ranks
from tests.bench.contract.stage import BrokenError

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (C\d+) \| (.+) \| (.+) \|$", (ROOT / "docs/contract.md").read_text(), flags=re.MULTILINE)


def test_each_clause_has_a_number_of_its_own_in_order() -> None:
    numbers = [int(number[1:]) for number, _, _ in ROWS]
    assert len(numbers) > 20
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(("number", "holders"), [(number, holders) for number, _, holders in ROWS])
def test_a_clause_is_held_by_a_test_or_by_an_aim_of_the_benchmark(number: str, holders: str) -> None:
    named = re.findall(r"`([^`]+)`", holders)
    assert named
    assert all((ROOT / name).is_file() if "/" in name else name in CLAUSES for name in named), holders


def test_every_aim_of_the_benchmark_but_those_of_slurm_holds_a_clause() -> None:
    named = {name for _, _, holders in ROWS for name in re.findall(r"`([^`]+)`", holders)}
    assert {name for name in CLAUSES if not name.startswith("slurm-")} <= named


@pytest.mark.parametrize(
    "log",
    [
        "",
        "rank 0 of 2 weights 1.0",
        "rank 0 of 2 weights 1.0\nrank 0 of 2 weights 1.0",
        "rank 0 of 1 weights 1.0\nrank 1 of 1 weights 1.0",
        "rank 0 of 2 weights 1.0\nrank 1 of 2 weights 1.1",
    ],
)
def test_ranks_that_are_missing_doubled_or_at_odds_break_a_clause(log: str) -> None:
    check_ranks("rank 1 of 2 weights 1.0\nrank 0 of 2 weights 1.0", 2)
    with pytest.raises(BrokenError):
        check_ranks(log, 2)
