"""Where requests go, and when: in order, never above what a replica takes, and each answered once."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.tier import examples
from weft.messages.serving import (
    BUCKET_FIRST_SECONDS,
    BUCKET_GROWTH,
    BUCKETS_MAX,
    ReplicaServed,
    ServiceServed,
    ServicesServed,
)
from weftd.router.thinking.backends import InFlightRequest
from weftd.router.thinking.routes import Refused
from weftd.router.thinking.routing import Routing
from weftd.router.thinking.service_queue import bucket_of
from weftd.router.thinking.table import RoutedReplica, RoutedService


def replica(rank: int, *, takes: bool = True, draining: bool = False) -> RoutedReplica:
    return RoutedReplica(epoch=0, rank=rank, address=f"10.0.0.{rank}:80", takes=takes, draining=draining)


def service(*replicas: RoutedReplica, job_id: str = "j-1", **fields: object) -> RoutedService:
    made = {"concurrency": 2, "queue": 3, "timeout": 10.0, "prefix": "", "h2c": False, "public": True, **fields}
    return RoutedService(job_id=job_id, name="chat", tenant="alice", seq=1, replicas=replicas, **made)  # type: ignore[arg-type]


def test_a_bucket_holds_the_times_up_to_its_bound() -> None:
    for number in range(BUCKETS_MAX - 1):
        bound = BUCKET_FIRST_SECONDS * BUCKET_GROWTH**number
        assert (bucket_of(bound), bucket_of(bound * 1.001)) == (number, number + 1)
    assert (bucket_of(0.0), bucket_of(-1.0), bucket_of(float("nan")), bucket_of(1e300)) == (0, 0, 0, BUCKETS_MAX - 1)


class Model:
    """A router's requests as they must be: what waits, in order, and what is where."""

    def __init__(self, concurrency: int, queue: int) -> None:
        self.routing = Routing(waiting_max=40)
        self.service = service(concurrency=concurrency, queue=queue)
        self.routing.know([self.service], 0.0)
        self.now = 0.0
        self.tickets = 0
        self.line: list[int] = []
        self.there: dict[int, InFlightRequest] = {}
        self.answers: Counter[int] = Counter()
        self.retried: set[int] = set()

    def take(self, ticket: int, answer: InFlightRequest | Refused) -> None:
        self.answers[ticket] += 1
        if isinstance(answer, InFlightRequest):
            assert answer.backend.replica.takes, "only a replica that takes requests gets one"
            self.there[answer.number] = answer

    def told(self, answers: list[tuple[int, InFlightRequest | Refused]]) -> None:
        for ticket, answer in answers:
            if isinstance(answer, InFlightRequest) and answer.tries == 1:
                firsts = [one for one in self.line if one not in self.retried]
                assert not firsts or ticket == firsts[0], "the first that came is the first that goes"
            self.line.remove(ticket)
            self.take(ticket, answer)

    def ask(self) -> None:
        self.tickets += 1
        answer = self.routing.ask(self.tickets, self.service, self.now)
        if answer is None:
            self.line.append(self.tickets)
        else:
            assert not self.line or isinstance(answer, Refused), "nothing overtakes what waits"
            self.take(self.tickets, answer)

    def end(self, at: int, status: int) -> None:
        if self.there:
            number = sorted(self.there)[at % len(self.there)]
            del self.there[number]
            self.told(self.routing.ended(number, self.now, status=status, first=0.01, took=0.02))

    def fail(self, at: int, *, dial: bool) -> None:
        if self.there:
            number = sorted(self.there)[at % len(self.there)]
            del self.there[number]
            self.tickets += 1
            error = "dial tcp: refused" if dial else "EOF"
            ticket = self.tickets
            answer, others = self.routing.failed(number, ticket, self.now, method="POST", error=error, status=502)
            if answer is None:
                self.retried.add(ticket)
                self.line.insert(0, ticket)
            else:
                self.take(ticket, answer)
            self.told(others)

    def leave(self, at: int) -> None:
        if self.line:
            ticket = self.line.pop(at % len(self.line))
            self.answers[ticket] += 1
            self.routing.gone(ticket)

    def change(self, takes: list[bool]) -> None:
        self.service = service(
            *(replica(rank, takes=one, draining=not one) for rank, one in enumerate(takes)),
            concurrency=self.service.concurrency,
            queue=self.service.queue,
        )
        self.told(self.routing.know([self.service], self.now))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.told(self.routing.tick(self.now))

    def check(self) -> None:
        lane = self.routing.queues["j-1"]
        assert list(lane.line) == self.line
        assert self.routing.waiting == len(self.line)
        assert len([one for one in self.line if one not in self.retried]) <= self.service.queue
        assert set(self.routing.requests) == set(self.there)
        for backend in lane.backends.values():
            assert len(backend.requests) <= self.service.concurrency
        assert all(times == 1 for times in self.answers.values())
        assert len(self.answers) + len(self.line) == self.tickets


STEPS = st.one_of(
    st.tuples(st.just("ask")),
    st.tuples(st.just("end"), st.integers(0, 9), st.sampled_from([200, 200, 499, 500])),
    st.tuples(st.just("fail"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("change"), st.lists(st.booleans(), max_size=4)),
    st.tuples(st.just("time"), st.floats(0.01, 6.0)),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(1, 3), st.integers(0, 5), st.lists(STEPS, max_size=60))
def test_requests_go_in_order_never_above_the_bound_and_none_is_lost(
    concurrency: int, queue: int, steps: list[tuple[object, ...]]
) -> None:
    model = Model(concurrency, queue)
    for what, *with_ in steps:
        match what:
            case "ask":
                model.ask()
            case "end":
                model.end(*with_)  # type: ignore[arg-type]
            case "fail":
                model.fail(with_[0], dial=with_[1])  # type: ignore[arg-type]
            case "leave":
                model.leave(*with_)  # type: ignore[arg-type]
            case "change":
                model.change(*with_)  # type: ignore[arg-type]
            case _:
                model.pass_time(*with_)  # type: ignore[arg-type]
        model.check()
    model.change([True])
    for _ in range(200):  # whatever was left waiting is answered, once
        model.pass_time(0.5)
        model.end(0, 200)
        model.check()
    assert model.line == []


def test_a_post_goes_again_only_if_it_cannot_have_run() -> None:
    for method, error, again in (
        ("POST", "dial tcp 10.0.0.1:80: connect: connection refused", True),
        ("POST", "EOF", False),
        ("POST", "malformed: dial tcp", False),
        ("GET", "EOF", True),
    ):
        routing = Routing()
        chat = service(replica(1), replica(2))
        routing.know([chat], 0.0)
        request = routing.ask(1, chat, 0.0)
        assert isinstance(request, InFlightRequest)
        answer, _ = routing.failed(request.number, 2, 0.1, method=method, error=error, status=502)
        assert isinstance(answer, InFlightRequest) is again
        if isinstance(answer, InFlightRequest):
            assert answer.backend is not request.backend
            assert answer.deadline == request.deadline


def test_a_request_is_tried_three_times_at_most() -> None:
    routing = Routing()
    chat = service(*(replica(rank) for rank in range(1, 6)))
    routing.know([chat], 0.0)
    answer = routing.ask(1, chat, 0.0)
    tries = 0
    while isinstance(answer, InFlightRequest):
        tries += 1
        answer, _ = routing.failed(answer.number, 1, 0.1, method="GET", error="EOF", status=502)
    assert tries == 3
    assert isinstance(answer, Refused)
    assert answer.status == 502


def dialled(routing: Routing, request: object, now: float) -> InFlightRequest | Refused | None:
    """What follows for a POST whose replica took no connection."""
    assert isinstance(request, InFlightRequest)
    answer, others = routing.failed(request.number, 1, now, method="POST", error="dial x", status=502)
    assert others == []
    return answer


def test_what_reached_no_replica_goes_to_each_and_waits_until_one_is_back() -> None:
    routing = Routing()
    chat = service(*(replica(rank) for rank in range(10)))
    routing.know([chat], 0.0)
    answer: InFlightRequest | Refused | None = routing.ask(1, chat, 0.0)
    tried = set()
    while answer is not None:
        assert isinstance(answer, InFlightRequest)
        tried.add(answer.backend.replica.rank)
        answer = dialled(routing, answer, 0.1)
    assert tried == set(range(10)), "each was tried once, and is left alone"
    assert routing.tick(1.0) == []
    ((_, again),) = routing.tick(1.2)
    assert isinstance(again, InFlightRequest)
    routing.ended(again.number, 1.3, status=200, first=None, took=0.1)
    assert routing.queues["j-1"].counts.failed == 0


def test_what_reaches_no_replica_in_its_time_is_told_so() -> None:
    routing = Routing()
    chat = service(replica(0))
    routing.know([chat], 0.0)
    answer = dialled(routing, routing.ask(1, chat, 0.0), 0.1)
    assert answer is None
    now = 0.1
    while routing.waiting:
        now += 0.1
        for _, told in routing.tick(now):
            if isinstance(told, InFlightRequest):
                assert dialled(routing, told, now) is None
            else:
                assert isinstance(told, Refused)
                assert (told.status, "none could be reached" in told.sentence) == (503, True)
    assert 10.0 <= now < 10.3


def test_one_request_finds_out_whether_a_replica_takes_connections_again() -> None:
    routing = Routing()
    chat = service(replica(0), concurrency=4)
    routing.know([chat], 0.0)
    assert dialled(routing, routing.ask(1, chat, 0.0), 0.1) is None
    for ticket in (2, 3):
        assert routing.ask(ticket, chat, 0.2) is None
    ((_, first),) = routing.tick(1.2)
    assert isinstance(first, InFlightRequest)
    assert routing.tick(2.0) == []
    assert len(routing.tick(1.2 + 2.6)) == 2, "it has been there longer than a connection is tried: it was taken"


def test_a_faster_replica_gets_more() -> None:
    routing = Routing()
    chat = service(replica(1), replica(2), concurrency=100)
    routing.know([chat], 0.0)
    backends = routing.queues["j-1"].backends
    backends[0, 1].speed, backends[0, 2].speed = 0.1, 0.3
    for ticket in range(40):
        routing.ask(ticket, chat, 0.0)
    assert (len(backends[0, 1].requests), len(backends[0, 2].requests)) == (30, 10)


def test_what_other_routers_have_at_a_replica_counts_but_takes_no_more_than_their_part() -> None:
    routing = Routing()
    chat = service(replica(1), concurrency=4)
    routing.know([chat], 0.0)
    there = ReplicaServed(epoch=0, rank=1, in_flight=4)
    told = ServiceServed(job_id="j-1", queued=1, replicas=(there,))
    routing.hear(ServicesServed(router="other", boot="a", seq=1, at=0.0, services=(told,)), 0.0)
    routing.tick(0.1)
    given_now = [routing.ask(ticket, chat, 0.2) for ticket in range(3)]
    assert [isinstance(one, InFlightRequest) for one in given_now] == [True, True, False]
    assert len(routing.tick(4.0)) == 1, "a router that is silent has nothing"


def test_a_lost_end_gives_its_place_back_at_the_second_look() -> None:
    routing = Routing()
    chat = service(replica(1), concurrency=1)
    routing.know([chat], 0.0)
    routing.ask(1, chat, 0.0)
    assert routing.ask(2, chat, 0.0) is None
    assert routing.settle(0, 0.5, 0.5) == []  # Caddy may not know of it yet
    assert routing.settle(0, 2.0, 2.0) == []
    (answer,) = routing.settle(0, 3.0, 3.0)
    assert (answer[0], routing.lost) == (2, 1)


def test_a_service_with_an_objective_refuses_early_what_it_cannot_serve_in_time() -> None:
    routing = Routing()
    chat = service(replica(1), concurrency=1, queue=1000, timeout=1.0, latency=0.5)
    routing.know([chat], 0.0)
    routing.queues["j-1"].backends[0, 1].speed = 0.1
    answers = [routing.ask(ticket, chat, 0.0) for ticket in range(30)]
    refused = [one for one in answers if isinstance(one, Refused)]
    assert len(refused) == 30 - 1 - 11
    assert {one.status for one in refused} == {429}
    assert all(one.retry_after >= 1 for one in refused)


def test_a_tenant_whose_requests_take_all_room_to_wait_gives_way_to_others() -> None:
    routing = Routing(waiting_max=10)
    flood = [service(job_id=f"j-{number}", queue=100) for number in (1, 2)]
    other = structs.replace(service(job_id="j-3", queue=100), tenant="bob")
    routing.know([*flood, other], 0.0)
    for ticket in range(10):
        assert routing.ask(ticket, flood[ticket % 2], 0.0) is None
    assert isinstance(routing.ask(10, flood[0], 0.0), Refused)
    asked = [routing.ask(ticket, other, 0.0) for ticket in range(20, 30)]
    assert [one is None for one in asked] == [True] * 5 + [False] * 5, "bob has a half, and no more than that"
    assert routing.waiting == 10
    gone = routing.tick(0.1)
    assert [ticket for ticket, _ in gone] == [8, 9, 6, 7, 4], "the newest"
    assert {answer.status for _, answer in gone if isinstance(answer, Refused)} == {429}
    assert routing.tick(0.2) == []
    assert {len(lane.line) for lane in routing.queues.values()} == {2, 3, 5}


def test_a_service_that_ends_lets_its_requests_end() -> None:
    routing = Routing()
    chat = service(replica(1), concurrency=1)
    routing.know([chat], 0.0)
    request = routing.ask(1, chat, 0.0)
    assert isinstance(request, InFlightRequest)
    assert routing.ask(2, chat, 0.0) is None
    ((ticket, answer),) = routing.forget(["j-1"])
    assert (ticket, isinstance(answer, Refused)) == (2, True)
    assert [one.rank for one in routing.served(0.1)[0].replicas if one.draining and one.in_flight == 1] == [1]
    routing.ended(request.number, 0.2, status=200, first=None, took=None)
    assert routing.served(0.3) == []


def answered_in(seconds: float, *, queue: int = 3, concurrency: int = 1) -> tuple[Routing, RoutedService]:
    """A service with an objective of a second, whose one replica has answered each request in so many seconds."""
    there = service(replica(0), concurrency=concurrency, queue=queue, latency=1.0)
    routing = Routing()
    routing.know([there], 0.0)
    for ticket in range(-50, 0):
        request = routing.ask(ticket, there, 0.0)
        assert isinstance(request, InFlightRequest)
        routing.ended(request.number, 0.0, status=200, first=seconds, took=seconds)
    return routing, there


def test_what_cannot_keep_the_objective_any_more_goes_after_what_still_can() -> None:
    routing, there = answered_in(0.2)
    first = routing.ask(1, there, 0.0)
    assert isinstance(first, InFlightRequest)
    assert [routing.ask(ticket, there, at) for ticket, at in ((2, 0.1), (3, 0.9), (4, 1.0))] == [None] * 3
    order, now, request = [], 1.1, first
    while True:
        answers = routing.ended(request.number, now, status=200, first=0.2, took=0.2)
        if not answers:
            break
        ((ticket, answer),) = answers
        assert isinstance(answer, InFlightRequest)
        order.append(ticket)
        request, now = answer, now + 0.2
    assert order == [3, 4, 2]
    assert routing.waiting == 0


def test_of_a_full_queue_what_is_late_in_any_case_leaves_its_place() -> None:
    routing, there = answered_in(0.2, queue=2, concurrency=1)
    first = routing.ask(1, there, 0.0)
    assert isinstance(first, InFlightRequest)
    assert [routing.ask(2, there, 0.0), routing.ask(3, there, 0.1)] == [None, None]
    refused = routing.ask(4, there, 0.2)
    assert isinstance(refused, Refused), "none of those that wait is late yet"
    assert routing.tick(2.0) == []
    assert routing.ask(5, there, 2.0) is None
    ((ticket, answer),) = routing.tick(2.1)
    assert (ticket, isinstance(answer, Refused) and answer.status) == (2, 429)
    assert routing.queues["j-1"].served(2.1).queued == 2
    assert routing.queues["j-1"].served(2.1).oldest_wait == pytest.approx(2.0)


def test_where_no_request_can_keep_the_objective_all_go_in_order_of_arrival() -> None:
    routing, there = answered_in(3.0)
    request = routing.ask(1, there, 0.0)
    assert isinstance(request, InFlightRequest)
    assert [routing.ask(ticket, there, float(ticket)) for ticket in (2, 3, 4)] == [None] * 3
    ((ticket, _),) = routing.ended(request.number, 5.0, status=200, first=3.0, took=3.0)
    assert ticket == 2


def test_what_waits_behind_ends_with_its_service_and_its_time() -> None:
    routing, there = answered_in(0.2, queue=10)
    assert isinstance(routing.ask(1, there, 0.0), InFlightRequest)
    assert [routing.ask(ticket, there, 0.0) for ticket in (2, 3)] == [None, None]
    routing.tick(5.0)
    assert routing.ask(4, there, 5.0) is None
    assert sorted(ticket for ticket, _ in routing.tick(10.0)) == [2, 3]
    routing.tick(14.0)
    assert [ticket for ticket, _ in routing.forget(["j-1"])] == [4]
    assert routing.waiting == 0
