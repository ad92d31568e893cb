"""A store that is away, with NATS whole or split: nothing runs twice, and where that is certain nothing ends.

One seed is lived again by `simulate(seed, variation=through_an_outage(holds_seconds=120.0), trace=True)`.
"""

import pytest

from tests.simulation import mutants
from tests.simulation.outage import outage_of, through_an_outage
from tests.simulation.simulate import Variation, simulate
from tests.support.tier import some

MUTANTS = {
    "a new leader that does not wait for who may hold nodes": (
        mutants.peers_are(mutants.HastyPeers, holds_seconds=120.0),
        121,
    ),
    "a leader that holds without hearing a scheduler that it has named": (
        mutants.peers_are(mutants.DeafPeers, holds_seconds=120.0),
        14,
    ),
    "a leader that holds without end": (mutants.peers_are(mutants.EndlessPeers, holds_seconds=10.0), 251),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", some(2, [3, 4, 5, 6, 10, 12, 121, 251, 498]))
def test_an_outage_ends_nothing_where_nobody_can_be_given_it_and_nothing_runs_twice(seed: int) -> None:
    assert simulate(seed, variation=through_an_outage(holds_seconds=120.0)).failures == []


@pytest.mark.timeout(300)
def test_without_holding_the_same_outage_ends_what_runs() -> None:
    seed = 5
    assert outage_of(seed).spares(holds_seconds=120.0)
    assert simulate(seed, variation=through_an_outage(holds_seconds=0.0)).counts["cut off"] > 0
    assert simulate(seed, variation=through_an_outage(holds_seconds=120.0)).counts["cut off"] == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", some(1, list(MUTANTS)))
def test_a_mistake_in_the_rule_is_found(mutant: str) -> None:
    variation, seed = MUTANTS[mutant]
    assert isinstance(variation, Variation)
    failures = [str(failure) for failure in simulate(seed, variation=variation).failures]
    assert any(" while " in failure for failure in failures), failures
