"""Loans in whole lives of a cluster: soon there, never more than there is, and all given back.

One seed is lived again by `simulate(seed, variation=beside_training(), trace=True)`.
"""

import pytest

from tests.simulation.loans import beside_training
from tests.simulation.simulate import simulate
from tests.support.tier import some


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", some(1, range(1, 5)))
def test_a_service_borrows_within_half_a_minute_and_training_has_everything_back_in_the_end(seed: int) -> None:
    result = simulate(seed, variation=beside_training())
    assert result.failures == []
    assert result.counts["loans"] > 0
