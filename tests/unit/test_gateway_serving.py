"""What the gateway shows of a service: who is believed about it, how old it may be, and its requests of a minute."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.support.builders import GIB, job, node
from weft.domain.job import Allocation, Job, JobState, Loan, Placement, Revision
from weft.messages.http.services import UnreadyView, UpdateView
from weft.messages.serving import (
    BUCKETS_MAX,
    Endpoint,
    EndpointsSeen,
    ReplicaServed,
    ServiceServed,
    ServicesServed,
)
from weft.messages.signals import Finding, PoolReviewed
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.service_views import endpoints_view, service_view
from weftd.gateway.readmodel.serving import SECONDS_MAX, TRACKS_MAX
from weftd.gateway.readmodel.views import job_view
from weftd.gateway.thinking.requests import percentile

NODES = {"node-1": node("node-1")}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def allocation(rank: int, node_id: str = "node-1", **fields: Any) -> Allocation:
    return Allocation(rank=rank, role="worker", node_id=node_id, cpus=1.0, memory=GIB, extra=True, **fields)


def service(*allocations: Allocation, want: int = 2, says: dict[str, Any] | None = None, **fields: Any) -> Job:
    asked = {
        "kind": "inference",
        "service": {"port": 8000},
        "role": {"replicas": {"min": 0, "want": want, "max": 8}},
        **(says or {}),
    }
    held = allocations or (allocation(0), allocation(1))
    usual = {"state": JobState.RUNNING, "placement": Placement(allocations=held), "spec": asked, "gpus": 0}
    return job("j-s", **{**usual, **fields})


def seen(*endpoints: Endpoint, node_id: str = "node-1", seq: int = 1, incarnation: int = 1) -> EndpointsSeen:
    return EndpointsSeen(node_id=node_id, incarnation=incarnation, seq=seq, at=1.0, endpoints=endpoints)


def endpoint(rank: int, **fields: Any) -> Endpoint:
    return Endpoint(**{"job_id": "j-s", "epoch": 0, "rank": rank, "port": 4000 + rank, "ready": True, **fields})


def served(router: str = "r-1", *, seq: int = 1, boot: str = "a", at: float = 1.0, **fields: Any) -> ServicesServed:
    one = ServiceServed(job_id="j-s", **fields)
    return ServicesServed(router=router, boot=boot, seq=seq, at=at, services=(one,))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(clock: Clock) -> LiveCluster:
    return LiveCluster(clock=clock, router_url="http://127.0.0.1:8480/")


async def test_replicas_that_take_requests_are_counted_as_their_node_reports_them(cluster: LiveCluster) -> None:
    found = service(allocation(0), allocation(1), allocation(2), want=4)
    await cluster.serving.hear_endpoints(seen(endpoint(0), endpoint(1, ready=False), endpoint(2, draining=True)))
    view = service_view(found, cluster)
    assert view is not None
    assert (view.wanted, view.granted, view.ready, view.draining, view.most) == (4, 3, 1, 1, 8)
    assert view.url == "http://127.0.0.1:8480/s/j-s/"


async def test_why_a_replica_is_not_ready_is_shown_within_the_next_report(cluster: LiveCluster) -> None:
    found = service(allocation(0), allocation(1), want=2)
    why = "connection refused at port 4001; it listens on port 8000"
    await cluster.serving.hear_endpoints(seen(endpoint(0), endpoint(1, ready=False, started_at=4.0, why=why)))
    view = service_view(found, cluster)
    assert view is not None
    assert view.unready == (UnreadyView(rank=1, why=why, since=4.0),)
    assert [one.why for one in endpoints_view(found, NODES, cluster).endpoints] == ["", why]


async def test_a_node_is_believed_about_its_own_runs_alone(cluster: LiveCluster) -> None:
    liar = seen(endpoint(0, port=1), endpoint(1, port=1), node_id="node-2")
    await cluster.serving.hear_endpoints(liar)
    await cluster.serving.hear_endpoints(seen(endpoint(0, epoch=7), endpoint(5), endpoint(1, job_id="j-other")))
    assert endpoints_view(service(), NODES, cluster).endpoints == ()


async def test_an_endpoint_has_the_address_of_its_node_in_the_store(cluster: LiveCluster) -> None:
    await cluster.serving.hear_endpoints(seen(endpoint(1, ready_at=5.0), endpoint(0, ready=False, started_at=4.0)))
    view = endpoints_view(service(), {"node-1": structs.replace(NODES["node-1"], address="10.0.0.9")}, cluster)
    assert [(each.rank, each.address, each.port, each.ready, each.since) for each in view.endpoints] == [
        (0, "10.0.0.9", 4000, False, 4.0),
        (1, "10.0.0.9", 4001, True, 5.0),
    ]
    assert view.token
    assert endpoints_view(service(), {}, cluster).endpoints == ()


async def test_the_digest_changes_with_every_change_and_with_nothing_else(cluster: LiveCluster) -> None:
    def digest() -> str:
        return endpoints_view(service(), NODES, cluster).digest

    none = digest()
    await cluster.serving.hear_endpoints(seen(endpoint(0), seq=1))
    one = digest()
    await cluster.serving.hear_endpoints(seen(endpoint(0), seq=2))
    assert digest() == one != none
    await cluster.serving.hear_endpoints(seen(endpoint(0, draining=True), seq=3))
    assert digest() not in (none, one)


async def test_what_was_reported_too_long_ago_is_not_known(cluster: LiveCluster, clock: Clock) -> None:
    await cluster.serving.hear_endpoints(seen(endpoint(0)))
    await cluster.serving.hear_served(served(queued=3))
    clock.now += SECONDS_MAX + 1
    view = service_view(service(), cluster)
    assert view is not None
    assert (view.ready, view.requests) == (None, None)
    asleep = service_view(service(placement=Placement(allocations=()), want=0), cluster)
    assert asleep is not None
    assert asleep.ready == 0  # it has no replica, so nothing is unknown


async def test_an_older_report_of_a_node_is_ignored_and_that_of_a_node_made_anew_is_not(
    cluster: LiveCluster, clock: Clock
) -> None:
    await cluster.serving.hear_endpoints(seen(endpoint(0), seq=5, incarnation=3))
    await cluster.serving.hear_endpoints(seen(seq=4, incarnation=3))
    await cluster.serving.hear_endpoints(seen(seq=9, incarnation=2))
    assert len(cluster.serving.endpoints(service())) == 1
    clock.now += SECONDS_MAX + 1
    await cluster.serving.hear_endpoints(seen(endpoint(0), endpoint(1), seq=1, incarnation=1))
    assert len(cluster.serving.endpoints(service())) == 2


async def test_the_requests_of_the_last_minute_are_those_of_all_routers(cluster: LiveCluster, clock: Clock) -> None:
    for second in range(61):
        for router in ("r-1", "r-2"):
            told = served(
                router,
                seq=second,
                arrived=1000 + 10 * second,
                late=second,
                totals={8: 9 * second, 20: second},
                queued=2,
                replicas=(ReplicaServed(epoch=0, rank=0, in_flight=3),),
            )
            await cluster.serving.hear_served(told)
        clock.now += 1
    requests = cluster.serving.requests(service())
    assert requests is not None
    assert requests.rate == pytest.approx(20.0)
    assert requests.seconds == pytest.approx(60.0)
    assert (requests.arrived, requests.late, requests.queued, requests.in_flight) == (1200, 120, 4, 6)
    assert requests.p50 == pytest.approx(0.004)
    assert requests.p99 == pytest.approx(0.032)


async def test_the_tokens_of_a_model_are_shown_and_each_engine_once(cluster: LiveCluster, clock: Clock) -> None:
    for second in range(61):
        for router in ("r-1", "r-2"):
            told = served(
                router,
                seq=second,
                arrived=second,
                tokens_in=1000 * second,
                tokens_cached=250 * second,
                tokens_out=100 * second,
                first_tokens={20: second},
                token_times={8: second},
                replicas=tuple(
                    ReplicaServed(epoch=0, rank=rank, engine_waiting=2, kv_used=0.3 + 0.2 * rank) for rank in range(2)
                ),
            )
            await cluster.serving.hear_served(told)
        clock.now += 1
    requests = cluster.serving.requests(service())
    assert requests is not None
    assert requests.tokens is not None
    tokens = requests.tokens
    assert (tokens.rate_in, tokens.rate_out, tokens.cached) == (pytest.approx(2000.0), pytest.approx(200.0), 0.25)
    assert (tokens.ttft, tokens.tpot) == (pytest.approx(0.032), pytest.approx(0.004))
    assert (tokens.waiting, tokens.kv_used) == (4, 0.5)


async def test_the_rate_of_now_is_that_of_the_last_seconds(cluster: LiveCluster, clock: Clock) -> None:
    for second in range(60):
        await cluster.serving.hear_served(served(seq=second, arrived=8 * max(0, second - 49)))
        clock.now += 1
    requests = cluster.serving.requests(service())
    assert requests is not None
    assert requests.rate < 2
    assert requests.rate_now == pytest.approx(8.0)


async def test_an_objective_is_out_of_reach_only_while_requests_come(cluster: LiveCluster, clock: Clock) -> None:
    finding = Finding(code="unattainable", job_id="j-s", sentence="one request alone takes 0.3 s")
    shown = []
    for second in range(80):
        await cluster.hear_review(PoolReviewed(pool="default", at=float(second), findings=(finding,)))
        await cluster.serving.hear_served(served(seq=second, arrived=min(second, 5), at=float(second)))
        clock.now += 1
        view = service_view(service(), cluster)
        assert view is not None
        shown.append(view.unattainable)
    assert (shown[5], shown[-1]) == ("one request alone takes 0.3 s", "")


async def test_a_router_that_was_started_again_counts_anew_and_its_late_messages_do_not(
    cluster: LiveCluster, clock: Clock
) -> None:
    await cluster.serving.hear_served(served(arrived=5000, at=10.0))
    clock.now += 6
    await cluster.serving.hear_served(served(boot="b", arrived=0, at=16.0))
    await cluster.serving.hear_served(served(arrived=9000, seq=99, at=15.0))
    clock.now += 6
    await cluster.serving.hear_served(served(boot="b", seq=2, arrived=60, at=22.0))
    await cluster.serving.hear_served(served(boot="b", seq=1, arrived=1, at=21.0))
    requests = cluster.serving.requests(service())
    assert requests is not None
    assert requests.arrived == 60
    assert requests.rate == pytest.approx(10.0)


async def test_counts_that_fall_are_no_requests(cluster: LiveCluster, clock: Clock) -> None:
    await cluster.serving.hear_served(served(arrived=1 << 52, totals={0: 1 << 52}))
    clock.now += 6
    await cluster.serving.hear_served(served(seq=2, arrived=3, totals={0: 1}))
    requests = cluster.serving.requests(service())
    assert requests is not None
    assert (requests.arrived, requests.rate, requests.p99) == (0, 0.0, None)


async def test_what_is_kept_of_routers_is_bounded(cluster: LiveCluster) -> None:
    many = tuple(ServiceServed(job_id=f"j-{number}") for number in range(TRACKS_MAX + 100))
    await cluster.serving.hear_served(ServicesServed(router="r-1", boot="a", seq=1, at=1.0, services=many))
    assert len(cluster.serving._tracks) == len(cluster.serving._routers) == TRACKS_MAX


PROMISE = {"objective": {"latency": "100ms", "percentile": 90, "rate": 10}}


@pytest.mark.parametrize(
    ("counts", "kept"),
    [
        ({"late": 10}, True),
        ({"late": 11}, False),
        ({"refused": 6, "failed": 5}, False),
        ({"arrived": 0}, None),
    ],
)
async def test_an_objective_is_kept_as_long_as_few_enough_requests_were_bad(
    cluster: LiveCluster, clock: Clock, counts: dict[str, int], kept: bool | None
) -> None:
    await cluster.serving.hear_served(served())
    clock.now += 6
    fields: dict[str, Any] = {"arrived": 100, **counts}
    await cluster.serving.hear_served(served(seq=2, **fields))
    view = service_view(service(says=PROMISE), cluster)
    assert view is not None
    assert view.kept is kept


async def test_a_promise_that_cannot_be_kept_is_told_as_the_autoscaler_tells_it(cluster: LiveCluster) -> None:
    finding = Finding(code="unattainable", job_id="j-s", sentence="one request alone takes 0.3 s, over 0.1 s")
    other = Finding(code="unattainable", job_id="j-other", sentence="not this")
    sheds = Finding(code="shedding", job_id="j-s", sentence="12 requests were refused")
    await cluster.hear_review(PoolReviewed(pool="default", at=1.0, findings=(other, finding, sheds)))
    view = service_view(service(), cluster)
    assert view is not None
    assert (view.unattainable, view.shedding) == (finding.sentence, sheds.sentence)


async def test_a_finding_on_a_job_is_in_its_view_alone_and_goes_when_the_job_waits(cluster: LiveCluster) -> None:
    finding = Finding(code="more-cpu", job_id="j-s", sentence="j-s: each worker 1.00 → 2.00 cores")
    sheds = Finding(code="shedding", job_id="j-s", sentence="12 requests were refused")
    other = Finding(code="more-cpu", job_id="j-other", sentence="not this")
    await cluster.hear_review(PoolReviewed(pool="default", at=1.0, findings=(other, sheds, finding)))
    assert job_view(service(), cluster, whole=True).findings == (finding,)
    assert job_view(service(), cluster).findings == ()
    waits = service(state=JobState.QUEUED, placement=None)
    assert job_view(waits, cluster, whole=True).findings == ()


def test_an_update_is_under_way_until_every_replica_runs_it_and_one_was_ready(cluster: LiveCluster) -> None:
    def update(*revisions: int, back_to: int | None) -> UpdateView | None:
        held = [allocation(rank, revision=revision) for rank, revision in enumerate(revisions)]
        found = service(*held, revisions=(Revision(number=1, image="b", at=7.0, back_to=back_to),))
        view = service_view(found, cluster)
        assert view is not None
        assert view.revision == 1
        return view.update

    half = update(0, 1, back_to=0)
    assert half is not None
    assert (half.revision, half.replaced, half.replicas, half.since, half.back_to) == (1, 1, 2, 7.0, 0)
    assert update(1, 1, back_to=0) is not None
    assert update(1, 1, back_to=None) is None


def test_a_loan_names_a_lender_that_the_caller_may_see(cluster: LiveCluster) -> None:
    loans = (Loan(lender="j-a", rank=1, gpus=0.5, ranks=1, since=3.0), Loan(lender="j-b", rank=2, gpus=1))
    view = service_view(service(loans=loans), cluster, names={"j-a": "mnist"})
    assert view is not None
    assert [(loan.lender, loan.name, loan.gpus) for loan in view.loans] == [("j-a", "mnist", 0.5), ("j-b", "", 1)]


def test_a_job_that_serves_nothing_has_no_service_and_one_without_a_router_no_url() -> None:
    nothing = LiveCluster(clock=lambda: 0.0)
    assert job_view(job(), nothing).service is None
    view = job_view(service(), nothing).service
    assert view is not None
    assert (view.url, view.ready) == ("", None)


@given(
    st.dictionaries(st.integers(0, BUCKETS_MAX - 1), st.integers(0, 1 << 40), max_size=8),
    st.floats(0.1, 99.9),
)
def test_a_percentile_never_falls_with_the_part_and_is_a_number(buckets: dict[int, int], part: float) -> None:
    found, most = percentile(buckets, part), percentile(buckets, 100.0)
    if any(buckets.values()):
        assert found is not None
        assert most is not None
        assert 0 < found <= most
    assert msgspec.json.encode(found) != b"inf"
