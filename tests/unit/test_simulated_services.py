"""Services in the simulator: the queue against a formula, no request vanishes, loans, and one seed is one run."""

from itertools import pairwise
from math import factorial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.tier import examples
from weft.domain.job import Cause, CauseCode
from weft.messages.serving import BUCKET_FIRST_SECONDS, BUCKET_GROWTH
from weft.planning.policy import Policy
from weft.serving.loads import Goal, ServiceLoad, Sized
from weft.simulator.counted import Counted
from weft.simulator.model import Cluster, World
from weft.simulator.outcome import Outcome
from weft.simulator.run import simulate
from weft.simulator.serving.over_time import Serving
from weft.simulator.serving.queueing import Requests, bucket_of
from weft.simulator.serving.rates import Bursts, RequestRate, arrivals_of, burst_spans, rates_of
from weft.simulator.serving.served import bad_requests, reversals, windows_of
from weft.simulator.serving.service import Services, Spread, TraceService, replicas_for
from weft.simulator.sizing import partitioning_of
from weft.simulator.workload import Elastic, TraceJob, Workload

FIFO = Policy("fifo", "packed-sticky", "none")
NEAR = 1e-6


class AsTold:
    """Replicas by time, whatever the load; it keeps all that it was told."""

    def __init__(self, *sizes: tuple[float, int], share: int | None = None) -> None:
        self._sizes = sizes
        self._share = share
        self.told: list[ServiceLoad] = []

    def decide(self, load: ServiceLoad) -> Sized:
        self.told.append(load)
        replicas = [size for at, size in self._sizes if at <= load.at][-1]
        return Sized(replicas=replicas, cause=Cause(code=CauseCode.LOAD), share=self._share)


def service(name: str = "s", **fields: Any) -> TraceService:
    made: dict[str, Any] = {
        "rate": RequestRate(mean=5.0),
        "work": Spread(mean_s=0.1),
        "start": Spread(mean_s=10.0),
        "latency_s": 0.5,
        "least": 0,
        "most": 100,
        "want": 1,
    }
    return TraceService(name=name, **{**made, **fields})


def ran(
    *services: TraceService,
    scaler: Any = None,
    nodes: int = 2,
    gpus_per_node: int = 4,
    lasts_s: float = 600.0,
    jobs: tuple[TraceJob, ...] = (),
    policy: Policy = FIFO,
    partition: str | None = None,
    seed: int = 1,
    beside_training: bool = False,
    **world: Any,
) -> Outcome:
    def make(trace: TraceService, goal: Goal, at: float) -> Any:
        del goal, at
        return scaler or AsTold((0.0, trace.want))

    return simulate(
        Workload(name="w", jobs=jobs),
        Cluster(nodes=nodes, gpus_per_node=gpus_per_node),
        policy,
        World(**{"penalty": 1.0, **world}),
        seed=seed,
        partitioning=None if partition is None else partitioning_of(partition),
        serving=Serving(
            services=Services(services=services, lasts_s=lasts_s, beside_training=beside_training),
            name="told",
            make=make,
        ),
    )


def only(outcome: Outcome) -> Counted:
    (counted,) = outcome.services
    return counted


# requests


def test_the_mean_wait_of_a_queue_is_that_of_the_formula_of_erlang() -> None:
    """M/M/c: 200,000 requests; the bound is six standard errors of the means of 50 batches."""
    for servers, load in ((1, 0.5), (3, 0.8), (8, 0.85)):
        dice = np.random.default_rng(3)
        rate, count = servers * load / 0.1, 200_000
        arrivals = np.cumsum(dice.exponential(1 / rate, count))
        requests = Requests(
            arrivals, dice.exponential(0.1, count), concurrency=1, queue=10**9, timeout_s=1e9, late_s=None
        )
        for rank in range(servers):
            requests.add(rank, 1.0, 0.0)
        requests.advance(float(arrivals[-1]) + 1000.0)
        waits = np.array(requests.started) - arrivals
        batches = waits.reshape(50, -1).mean(axis=1)
        error = batches.std(ddof=1) / np.sqrt(50)
        assert abs(waits.mean() - _erlang_wait(servers, load, 0.1)) < 6 * error


def _erlang_wait(servers: int, load: float, mean_s: float) -> float:
    offered = servers * load
    last = offered**servers / factorial(servers) / (1 - load)
    waits = last / (sum(offered**k / factorial(k) for k in range(servers)) + last)
    return waits * mean_s / (servers * (1 - load))


def test_replicas_that_take_several_requests_at_once_serve_like_as_many_replicas() -> None:
    dice = np.random.default_rng(1)
    arrivals, works = np.cumsum(dice.exponential(0.02, 5000)), dice.exponential(0.1, 5000)
    latencies = []
    for replicas, at_once in ((6, 1), (2, 3)):
        requests = Requests(arrivals, works, concurrency=at_once, queue=10**9, timeout_s=1e9, late_s=None)
        for rank in range(replicas):
            requests.add(rank, 1.0, 0.0)
        requests.advance(1e6)
        latencies.append(requests.latency)
    assert latencies[0] == pytest.approx(latencies[1])


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 6)), max_size=8),
    queue=st.integers(0, 30),
    timeout_s=st.floats(0.5, 20.0),
)
def test_every_request_is_answered_refused_lost_or_still_there(
    seed: int, sizes: list[tuple[int, int]], queue: int, timeout_s: float
) -> None:
    scaler = AsTold((0.0, 2), *((float(at), size) for at, size in sorted(sizes)))
    one = service(rate=RequestRate(mean=15.0), queue=queue, timeout_s=timeout_s, start=Spread(mean_s=3.0), want=2)
    outcome = ran(one, scaler=scaler, lasts_s=300.0, seed=seed, failures_per_node_day=300.0, repair_s=60.0)
    found = only(outcome)
    assert found.arrived == found.answered + found.refused + found.failed + found.open
    assert found.bad >= found.refused + found.failed + found.late
    assert found.open <= queue + 8
    told = scaler.told[-1]
    assert sum(told.totals.values()) == sum(told.services.values()) == told.answered
    assert sum(told.waits.values()) == told.answered + told.in_flight + found.retried
    assert all(a.arrived <= b.arrived and a.answered <= b.answered for a, b in pairwise(scaler.told))


def test_a_request_beyond_the_queue_is_refused_and_one_that_waits_too_long_is_lost() -> None:
    found = only(ran(service(rate=RequestRate(mean=10.0), want=0, queue=20, timeout_s=5.0), lasts_s=60.0))
    assert found.answered == 0
    assert found.refused > 0
    assert found.failed > 0
    assert found.attainment == 0.0


def test_in_a_burst_what_is_late_in_any_case_waits_behind_so_that_the_rest_is_in_time() -> None:
    burst = RequestRate(steps=((0.0, 8.0), (100.0, 40.0), (160.0, 2.0)))
    bad = {}
    for late_last in (True, False):
        found = only(ran(service(rate=burst, want=1, most=1, late_last=late_last), lasts_s=300.0))
        assert found.arrived == found.answered + found.refused + found.failed + found.open
        bad[late_last] = found.bad
    assert bad[True] < 0.85 * bad[False]


@pytest.mark.parametrize("late_last", [True, False])
def test_a_full_queue_refuses_what_is_late_in_any_case_first(late_last: bool) -> None:
    burst = RequestRate(steps=((0.0, 8.0), (100.0, 40.0)))
    found = only(ran(service(rate=burst, want=1, most=1, queue=20, late_last=late_last), lasts_s=200.0))
    assert found.refused > 0
    assert found.arrived == found.answered + found.refused + found.failed + found.open
    assert (found.bad < 0.8 * found.arrived) is late_last


def test_requests_of_a_replica_whose_node_fails_are_tried_again() -> None:
    one = service(rate=RequestRate(mean=20.0), work=Spread(mean_s=1.0), want=8, most=8, concurrency=4)
    found = only(ran(one, failures_per_node_day=2000.0, repair_s=20.0))
    assert found.retried > 0
    assert found.starts > 0
    assert found.arrived == found.answered + found.refused + found.failed + found.open


def test_a_bucket_holds_the_times_up_to_its_bound() -> None:
    assert bucket_of(0.0) == bucket_of(BUCKET_FIRST_SECONDS) == 0
    for bucket in (1, 7, 40):
        bound = BUCKET_FIRST_SECONDS * BUCKET_GROWTH**bucket
        assert (bucket_of(bound), bucket_of(bound * 1.001)) == (bucket, bucket + 1)
    assert bucket_of(1e300) == 127


# rates


def test_a_rate_goes_up_and_down_within_a_day_and_bursts_multiply_it() -> None:
    dice = np.random.default_rng(1)
    rates = rates_of(RequestRate(mean=10.0, swing=0.5, period_s=1000.0, peak_at_s=250.0), 1000.0, dice)
    assert rates[250] == pytest.approx(15.0)
    assert rates[750] == pytest.approx(5.0)
    bursts = Bursts(every_s=100.0, lasts_s=20.0, times=4.0)
    spans = burst_spans(bursts, 1000.0, np.random.default_rng(2))
    burst = rates_of(RequestRate(mean=10.0, bursts=bursts), 1000.0, np.random.default_rng(2))
    assert spans
    assert all(burst[int(begin) + 1] == 40.0 for begin, _ in spans if begin < 998)
    assert set(burst) == {10.0, 40.0}


def test_recorded_rates_and_recorded_arrivals_are_taken_as_they_are() -> None:
    rate = RequestRate(steps=((10.0, 5.0), (20.0, 0.0)))
    arrivals = arrivals_of(rate, 60.0, np.random.default_rng(1))
    assert 20 < len(arrivals) < 90
    assert all(10 <= at < 20 for at in arrivals)
    assert arrivals_of(RequestRate(arrivals=(3.0, 1.0, 99.0)), 60.0, np.random.default_rng(1)).tolist() == [1.0, 3.0]


def test_the_number_of_arrivals_is_that_of_the_rate() -> None:
    count = len(arrivals_of(RequestRate(mean=10.0, swing=1.0), 86_400.0, np.random.default_rng(5)))
    assert abs(count - 864_000) < 6 * 864_000**0.5


# replicas


def test_replicas_take_requests_once_they_have_started_and_hold_gpus_from_their_place_on() -> None:
    scaler = AsTold((0.0, 0), (100.0, 2), (200.0, 0))
    found = only(ran(service(rate=RequestRate(mean=5.0), want=0, timeout_s=500.0), scaler=scaler))
    assert found.starts == 2
    assert found.gpu_s == pytest.approx(200.0, abs=4.0)
    assert found.cold_waits > 0
    assert found.cold_wait_most_s > 109.0


def test_a_service_without_replicas_asks_its_autoscaler_at_the_first_request() -> None:
    scaler = AsTold((0.0, 0))
    ran(service(rate=RequestRate(arrivals=(100.25,)), want=0), scaler=scaler, lasts_s=200.0)
    assert 100.25 in {load.at for load in scaler.told}


def test_a_larger_share_makes_requests_shorter_and_holds_more() -> None:
    bounded = service(share=250, share_most=250, want=2, work=Spread(mean_s=0.02))
    shared = structs.replace(bounded, share_most=1000)
    small, large = only(ran(bounded)), only(ran(shared, scaler=AsTold((0.0, 2), share=1000)))
    assert small.latency_p50_s is not None
    assert large.latency_p50_s is not None
    assert small.latency_p50_s > 3 * large.latency_p50_s
    alone = only(ran(shared))
    assert alone.latency_p50_s == pytest.approx(large.latency_p50_s)
    assert alone.gpu_s == pytest.approx(small.gpu_s)
    assert small.gpu_s == pytest.approx(2 * 0.25 * 600.0, rel=0.01)
    assert large.gpu_s == pytest.approx(2 * 600.0, rel=0.01)


def test_replicas_that_share_a_gpu_divide_its_time_by_their_shares_within_their_limits() -> None:
    shares = {"a": (200, 1000), "b": (600, 700), "c": (200, 1000)}
    services = [
        service(name, share=least, share_most=most, rate=RequestRate(mean=0.2), work=Spread(mean_s=0.1))
        for name, (least, most) in shares.items()
    ]
    outcome = ran(*services, nodes=1, gpus_per_node=1)
    took = [counted.latency_p50_s for counted in outcome.services]
    assert took == pytest.approx([0.1 / 0.2, 0.1 / 0.6, 0.1 / 0.2])
    first = ran(*services[:2], nodes=1, gpus_per_node=1)
    assert [counted.latency_p50_s for counted in first.services] == pytest.approx([0.1 / 0.25, 0.1 / 0.7])


def test_beside_training_a_replica_that_is_alone_on_its_gpu_gets_its_share_and_no_more() -> None:
    shared = service(share=250, share_most=1000, rate=RequestRate(mean=0.2))
    assert only(ran(shared, beside_training=True)).latency_p50_s == pytest.approx(0.1 / 0.25)
    assert only(ran(shared)).latency_p50_s == pytest.approx(0.1)


def test_a_service_gets_no_more_than_there_is_and_takes_the_rest_when_it_is_free() -> None:
    first = service("a", want=6)
    second = service("b", want=4)
    outcome = ran(first, second)
    assert [counted.gpu_s for counted in outcome.services] == pytest.approx([6 * 600.0, 2 * 600.0], rel=0.02)
    assert outcome.services[1].short_s == pytest.approx(2 * 600.0, rel=0.02)


def test_a_reversal_is_a_change_against_the_one_before() -> None:
    assert reversals([]) == 0
    assert reversals([(0, 1.0), (1, 2.0), (2, -1.0), (3, -1.0), (4, 1.0)]) == 2


def test_a_person_sizes_a_service_by_its_rate() -> None:
    assert replicas_for(service(work=Spread(mean_s=0.1), concurrency=2), 70.0) == 5
    assert replicas_for(service(most=3), 1e6) == 3


# loans


def elastic(job_id: str, *, asked: int = 8, work_s: float = 1200.0, resize_s: float = 5.0) -> TraceJob:
    made = Elastic(asked=asked, least=2, most=8, each=(1.0, 0.0, 0.0), live=True, resize_s=resize_s)
    return TraceJob(id=job_id, arrival_s=0.0, gpus=asked, work_s=work_s, elastic=made)


def test_training_lends_extras_to_a_service_and_gets_them_back_after_a_rest() -> None:
    scaler = AsTold((0.0, 0), (200.0, 4), (300.0, 0))
    outcome = ran(service(want=0), scaler=scaler, jobs=(elastic("t"),), partition="weft")
    found, (job,) = only(outcome), outcome.jobs
    assert found.loans == 4
    assert found.borrowed_gpu_s == pytest.approx(400.0, rel=0.05)
    assert 0 < found.loan_lost_gpu_s <= 4 * 5.0 * 8
    sizes = [(spell.begin_s, spell.replicas) for spell in outcome.spells]
    assert min(size for _, size in sizes) == 4
    grown = next(at for at, size in sizes if at > 250 and size == 8)
    assert 360.0 <= grown <= 700.0
    assert job.completed_s > 1200.0


def test_without_a_planner_jobs_keep_their_gpus_and_the_service_waits() -> None:
    outcome = ran(service(want=0), scaler=AsTold((0.0, 0), (200.0, 4)), jobs=(elastic("t", work_s=400.0),))
    assert only(outcome).loans == 0
    assert only(outcome).short_s == pytest.approx(4 * 200.0, rel=0.05)
    assert outcome.jobs[0].completed_s == pytest.approx(400.0)


def test_jobs_have_all_gpus_once_the_services_have_ended() -> None:
    outcome = ran(service(want=4), jobs=(elastic("t", asked=4, work_s=3000.0),), partition="weft", lasts_s=300.0)
    sizes = [(spell.begin_s, spell.replicas) for spell in outcome.spells]
    assert sizes[0][1] == 4
    assert sizes[-1][1] == 8
    assert sizes[-1][0] < 1000.0


def test_no_job_lends_below_its_least() -> None:
    outcome = ran(service(want=0), scaler=AsTold((0.0, 0), (100.0, 8)), jobs=(elastic("t"),), partition="weft")
    assert min(spell.replicas for spell in outcome.spells) == 2
    assert only(outcome).loans == 6


def test_services_come_before_jobs_where_the_order_preempts() -> None:
    rigid = TraceJob(id="r", arrival_s=0.0, gpus=8, work_s=900.0)
    preempting = Policy("las", "weft-best", "easy")
    found = only(ran(service(want=0), scaler=AsTold((0.0, 0), (100.0, 1)), jobs=(rigid,), policy=preempting))
    assert found.evicted_jobs == 1
    assert found.answered > 0


# what came of it


def test_late_refused_and_lost_requests_are_bad_and_open_ones_once_they_are_late() -> None:
    latency = [0.1, 0.6, float("inf"), float("nan"), float("nan")]
    bad = bad_requests([0.0, 1.0, 2.0, 3.0, 9.9], latency, 10.0, 0.5)
    assert bad.tolist()[:4] == [0.0, 1.0, 1.0, 1.0]
    assert np.isnan(bad[4])


def test_a_window_is_bad_if_more_of_its_requests_are_bad_than_the_objective_allows() -> None:
    arrivals = [float(number) / 10 for number in range(200)]
    latency = [0.1] * 200
    latency[5] = 1.0  # 1 of 100 in the first window
    latency[150] = latency[160] = 2.0  # 2 of 100 in the second
    bad = bad_requests(arrivals, latency, 20.0, 0.5)
    found = windows_of(arrivals, latency, bad, percentile=99.0, late_s=0.5)
    assert (found.count, found.bad) == (2, 1)
    assert found.worst == pytest.approx(4.0)


def test_the_same_inputs_give_the_same_outcome_and_other_dice_another() -> None:
    one = service(
        rate=RequestRate(mean=8.0, bursts=Bursts(every_s=100.0, lasts_s=20.0)), work=Spread(mean_s=0.1, cv=1.0)
    )

    def again(seed: int) -> Outcome:
        scaler = AsTold((0.0, 1), (50.0, 3), (400.0, 1))
        return ran(one, scaler=scaler, jobs=(elastic("t"),), partition="weft", seed=seed)

    assert again(1) == again(1)
    assert again(1).services != again(2).services


def test_an_autoscaler_does_not_change_the_requests() -> None:
    one = service(rate=RequestRate(mean=8.0))
    assert only(ran(one)).arrived == only(ran(structs.replace(one, want=3))).arrived
