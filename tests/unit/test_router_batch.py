"""Batch requests take idle places alone, leave some to other requests, and are not counted as load."""

import pytest

from tests.unit.test_router_thinking import replica, service
from weftd.router.answers import question_of
from weftd.router.thinking.backends import InFlightRequest
from weftd.router.thinking.batch import is_batch
from weftd.router.thinking.routes import Refused
from weftd.router.thinking.routing import Routing
from weftd.router.thinking.table import RoutedService


def routing_of(made: RoutedService) -> Routing:
    routing = Routing()
    routing.know([made], 0.0)
    return routing


def admitted(routing: Routing, made: RoutedService, *, batch: bool, most: int = 100) -> list[InFlightRequest]:
    """Those that get a replica, until one does not."""
    found = []
    for ticket in range(most):
        answer = routing.ask(ticket, made, 1.0, batch=batch)
        if not isinstance(answer, InFlightRequest):
            break
        found.append(answer)
    return found


@pytest.mark.parametrize(
    ("concurrency", "replicas", "taken"), [(1, 1, 1), (2, 1, 2), (4, 1, 3), (4, 2, 6), (64, 1, 48)]
)
def test_batch_requests_leave_a_quarter_of_the_places_to_others(concurrency: int, replicas: int, taken: int) -> None:
    made = service(*(replica(rank) for rank in range(replicas)), concurrency=concurrency)
    routing = routing_of(made)
    assert len(admitted(routing, made, batch=True)) == taken
    assert len(admitted(routing, made, batch=False)) == concurrency * replicas - taken


def test_a_batch_request_is_refused_with_the_numbers_while_others_wait() -> None:
    made = service(replica(0), concurrency=2, queue=3)
    routing = routing_of(made)
    (first, *_) = admitted(routing, made, batch=False)
    refused = routing.ask(10, made, 1.0, batch=True)
    assert refused == Refused(429, "1 other requests wait for this service: batch requests come after them", 1.0)
    assert routing.queues["j-1"].waiting == 1
    routing.ended(first.number, 2.0, status=200, first=0.1, took=1.0)
    assert routing.queues["j-1"].waiting == 0
    full = routing.ask(11, made, 2.0, batch=True)
    assert full == Refused(429, "0 of 2 places at replicas are free", 1.0)


def test_batch_requests_are_not_counted_as_load() -> None:
    made = service(replica(0), concurrency=1, latency=0.001)
    routing = routing_of(made)
    (first,) = admitted(routing, made, batch=True)
    routing.ended(first.number, 9.0, status=200, first=8.0, took=8.0)
    (second,) = admitted(routing, made, batch=True)
    routing.ended(second.number, 10.0, status=503, first=None, took=None)
    (served,) = routing.served(11.0)
    assert (served.arrived, served.answered, served.refused, served.failed, served.late) == (0, 0, 0, 0, 0)
    assert (served.waits, served.services, served.totals, served.replicas[0].answered) == ({}, {}, {}, 0)
    counts = routing.queues["j-1"].counts
    assert (counts.batch_answered, counts.batch_refused) == (1, 2)
    admitted(routing, made, batch=True)
    assert routing.served(12.0)[0].replicas[0].in_flight == 1, "what runs is told: a replica that drains ends it first"


def test_one_batch_request_wakes_a_service_at_zero_and_the_others_are_refused() -> None:
    made = service(concurrency=4)
    routing = routing_of(made)
    assert routing.ask(1, made, 0.0, batch=True) is None
    assert routing.queues["j-1"].wants_replica
    refused = routing.ask(2, made, 0.0, batch=True)
    assert isinstance(refused, Refused)
    assert (refused.status, refused.unready) == (503, True)
    assert routing.ask(3, made, 0.0) is None, "other requests wait as ever"
    answers = routing.know([service(replica(0), concurrency=4)], 1.0)
    assert [ticket for ticket, _ in answers] == [1, 3]
    routing.forget(["j-1"])
    routing.know([made], 2.0)
    assert routing.ask(4, made, 2.0, batch=True) is None
    ((ticket, late),) = routing.tick(13.0)
    assert ticket == 4
    assert isinstance(late, Refused)
    assert late.status == 503
    assert routing.queues["j-1"].counts.failed == 0


def test_a_batch_request_that_reached_no_replica_does_not_overtake_what_waits() -> None:
    made = service(replica(0), replica(1), concurrency=1)
    routing = routing_of(made)
    (batch,) = admitted(routing, made, batch=True, most=1)
    admitted(routing, made, batch=False)
    assert routing.queues["j-1"].waiting == 1
    answer, others = routing.failed(batch.number, 50, 2.0, method="POST", error="dial tcp: refused", status=502)
    assert isinstance(answer, Refused)
    assert answer.status == 429
    assert all(ticket != 50 for ticket, _ in others)


def test_the_header_names_batch_or_is_refused() -> None:
    assert is_batch(question_of(b"GET / HTTP/1.1\r\nWeft-Priority: batch").priority) is True
    assert is_batch("") is False
    assert is_batch("high") == Refused(400, "Weft-Priority must be batch, got 'high'")
