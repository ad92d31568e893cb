"""GPUs that turn slow and become well again while a workload runs on them: how soon the scorer says so, and of whom.

Also a program: `python -m tests.unit.test_scorer_drift` prints what it measured, over some seeds.
"""

from statistics import median

import pytest
from msgspec import Struct

from tests.support.fleet import Fleet, Watched
from tests.support.tier import some

THIRD_SLOWER = 4 / 3  # a step takes a third longer
SLOW = (("node-1", 2), ("node-1", 5))
NOTICED, FORGIVEN = 1.2, 1.1


class Drift(Struct, frozen=True):
    """Seconds until both slow GPUs had a score above NOTICED, until what placement goes by was, and until they were
    below FORGIVEN after they were well again; the highest score that any other GPU ever had."""

    noticed: float | None
    avoided: float | None
    forgiven: float | None
    worst_other: float
    rows: int


def drift(seed: int, *, slower: float = THIRD_SLOWER, outliers: float = 0.05, noise: float = 0.02) -> Drift:
    fleet = Fleet(gpus=8, seed=seed, noise=noise, outliers=outliers)
    fleet.run_one_each()
    watched = Watched(fleet)
    watched.run(300 + seed % 13)
    fleet.slow = dict.fromkeys(SLOW, slower)
    began = fleet.now
    noticed = watched.run(600, lambda: all(watched.score(place).score > NOTICED for place in SLOW))
    watched.run(600, lambda: all(watched.score(place).believed > NOTICED for place in SLOW))
    avoided = fleet.now - began
    watched.run(600)
    fleet.slow = {}
    forgiven = watched.run(1200, lambda: all(watched.score(place).score < FORGIVEN for place in SLOW))
    watched.run(300)
    others = max(worst for place, worst in watched.worst.items() if place not in SLOW)
    return Drift(noticed, avoided, forgiven, others, len(watched.saved))


@pytest.mark.parametrize("slower", [THIRD_SLOWER, 1.5])
@pytest.mark.parametrize("seed", some(2, range(1, 9)))
def test_two_gpus_that_turn_slow_are_noticed_and_forgiven_and_nobody_else_is_ever_blamed(
    seed: int, slower: float
) -> None:
    found = drift(seed, slower=slower)
    assert found.noticed is not None
    assert found.noticed <= 75
    assert found.avoided is not None
    assert found.avoided <= 120
    assert found.forgiven is not None
    assert found.forgiven <= 75
    assert found.worst_other <= 1.1


if __name__ == "__main__":
    for slower in (THIRD_SLOWER, 1.5):
        for outliers in (0.0, 0.05, 0.15):
            found = [drift(seed, slower=slower, outliers=outliers) for seed in range(1, 21)]

            def told(values: list[float | None]) -> str:
                known = [value for value in values if value is not None]
                return f"{median(known):.0f} s (at most {max(known):.0f}, {len(values) - len(known)} never)"

            print(  # noqa: T201
                f"{slower:.2f}x slower, {outliers:.0%} outliers, {len(found)} seeds:"
                f" noticed {told([one.noticed for one in found])}, believed {told([one.avoided for one in found])},"
                f" forgiven {told([one.forgiven for one in found])};"
                f" worst other {max(one.worst_other for one in found):.3f},"
                f" rows {median(one.rows for one in found):.0f}"
            )
