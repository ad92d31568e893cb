"""What the simulation found in Weft, with the seed that showed it. Each mistake has a test of its own too, named here.

A seed is a history only of one version of Weft and of the simulation: later it lives through something else, which
must go well all the same.
"""

import pytest

from tests.simulation.simulate import simulate
from tests.support.tier import some

FOUND = [
    (1, "the gateway heard no event: what it took for one did not say its own subject (test_gateway_feed)"),
    (12, "a stream that was made and then not filled, as the store was away, stayed without history (test_relay)"),
    (1364, "a stream that was lost while nothing happened was not missed until the next event (test_relay)"),
    (100, "who stood in for a leader had a job begun that the leader thought no node knew of (test_scheduler_standin)"),
    (136, "a leader in trouble stood in for itself, and then gave away what it had begun (test_scheduler_leadership)"),
    (370, "a standby that could not read the store called a leader in good health gone (test_scheduler_leadership)"),
    (211, "a leader that lost its lease while it renewed it died of that (test_scheduler_leadership)"),
    (8, "a new leader took a report of before it led for proof that a run is gone (test_scheduler_went_back)"),
    (24, "a run that had ended and was removed began again, as an older answer still wanted it (test_executor_core)"),
    (1010, "a report of an earlier boot of its node that came late was taken (test_scheduler_core)"),
    (1130, "a leader that was replaced while it hung decided on a job that it never knew (test_scheduler_desk)"),
    (1458, "the same, and two jobs had one GPU in its picture (test_scheduler_desk)"),
    (50421, "an admission landed after a load had read all jobs, and its jobs stayed unknown (test_scheduler_desk)"),
    (2, "scores heard in the middle of a turn were left out of its record: a replay differed (test_scheduler_desk)"),
    (50530, "a service scaled to nothing before it began gave way, which ended each leader (test_scheduler_services)"),
    (
        60279,
        "an old number of an ask came again after a restore, and a submission was dropped by it (test_store_went_back)",
    ),
    (51667, "a copy of the store of before a new stream was filled left it without history (test_scheduler_relay)"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "what"), some(3, FOUND), ids=[str(seed) for seed, _ in FOUND])
def test_what_was_found_goes_well_now(seed: int, what: str) -> None:
    assert simulate(seed).failures == [], what
