"""The queue as it is shown is the queue as it is served, whatever is remembered between two looks."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.builders import job, node
from tests.support.steps import placement
from tests.support.tier import examples
from weft.domain.job import Job, JobState
from weft.planning.eta.starts import PoolToCome
from weft.planning.in_order import KnownPlaces, in_order, order_of
from weft.planning.policy import ORDERS
from weft.planning.reasons.explain import explain

NOW = 1_000_000.0
NODES = [node("node-1"), node("node-2")]

waiting = st.builds(
    lambda tenant, priority, gpus, ran, not_before, limit: {
        "tenant": tenant,
        "priority": priority,
        "gpus": gpus,
        "attained_seconds": ran,
        "attained_gpu_seconds": ran * gpus,
        "not_before": not_before,
        "spec": {"time_limit": limit} if limit else {},
    },
    st.sampled_from(["alice", "bob", "carol"]),
    st.integers(-3, 3),
    st.integers(0, 4),
    st.sampled_from([0.0, 10.0, 5000.0, 90_000.0]),
    st.sampled_from([0.0, NOW - 5, NOW + 500]),
    st.sampled_from(["", "60s", "2h"]),
)


def made(index: int, fields: dict[str, Any]) -> Job:
    known = {
        name: value
        for name, value in fields.items()
        if name in Job.__struct_fields__ and name not in ("tenant", "spec")
    }
    priority = known.pop("priority")
    one = job(f"j-{index}", seq=index, gpus=fields["gpus"], spec=fields["spec"], **known)
    return structs.replace(one, tenant=fields["tenant"], priority=priority, since=NOW - 100 * index)


@pytest.mark.parametrize("order", ORDERS)
@settings(deadline=None, max_examples=examples(40))
@given(several=st.lists(waiting, min_size=1, max_size=12), first=st.integers(0, 12))
def test_the_place_of_a_job_is_what_its_explanation_says(order: str, several: list[dict[str, Any]], first: int) -> None:
    queued = [made(index, fields) for index, fields in enumerate(several)]
    running = structs.replace(
        job("j-running", gpus=2),
        tenant="bob",
        state=JobState.RUNNING,
        placement=placement(("node-1", 0)),
        started_at=NOW - 50,
    )
    places = KnownPlaces(order_of(f"{order}+packed+easy"))
    in_order(queued[:first], nodes=NODES, holding=[], places=places, now=NOW - 3600)  # something to remember
    shown = in_order(queued, nodes=NODES, holding=[running], places=places, now=NOW)
    assert sorted(each.job.id for each in shown) == sorted(each.id for each in queued)
    policy = f"{order}+packed+easy"
    for each in shown:
        told = explain(each.job, nodes=NODES, holding=[running], queued=queued, now=NOW, policy=policy)
        assert each.ahead == told.ahead
        again = explain(each.job, nodes=NODES, holding=[running], queued=queued, now=NOW, policy=policy, places=places)
        assert again == told


@pytest.mark.parametrize("order", ORDERS)
@settings(deadline=None, max_examples=examples(40))
@given(several=st.lists(waiting, min_size=1, max_size=12), first=st.integers(0, 12))
def test_what_is_foretold_is_the_same_whatever_is_remembered_of_the_queue(
    order: str, several: list[dict[str, Any]], first: int
) -> None:
    queued = [made(index, fields) for index, fields in enumerate(several)]
    policy = f"{order}+packed+easy"
    places = KnownPlaces(order_of(policy))
    in_order(queued[:first], nodes=NODES, holding=[], places=places, now=NOW - 3600)
    fresh = PoolToCome(NODES, [], queued, now=NOW, policy=policy)
    remembered = PoolToCome(NODES, [], queued, now=NOW, policy=policy, places=places)
    assert remembered.places == fresh.places
    assert list(remembered.queue) == list(fresh.queue)
    assert [remembered.start_of(each) for each in queued] == [fresh.start_of(each) for each in queued]


def test_an_order_of_a_later_version_is_shown_as_priority() -> None:
    assert order_of("astrology+packed+easy").name == "priority"
    assert order_of("").name == "priority"
