"""Decides where and when each request of one router goes, for all services.

A request goes to a replica, waits, or is refused. Waiting requests get a replica in order of arrival, as soon as one
has room, and are refused after the longest wait of their service. Requests that can no longer meet the objective of
their service are served after those that can.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count

from msgspec import Struct

from weft.messages.serving import ServiceServed, ServicesServed
from weftd.router.thinking.backends import Backend, InFlightRequest
from weftd.router.thinking.batch import no_idle_place, wakes
from weftd.router.thinking.routes import Refused
from weftd.router.thinking.service_queue import ServiceQueue, Waiter
from weftd.router.thinking.table import RoutedService

RUNS_MAX = 3  # tries of a request that may run more than once
TRIES_MAX = 32  # tries of one request, including those that reached no replica
OTHERS_SECONDS = 3.0  # seconds of silence after which a router counts as without requests
LOST_SECONDS = 1.0  # a request that was given to a replica earlier must be known to Caddy
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

Answer = tuple[int, "InFlightRequest | Refused"]
"""Results for requests that waited, by ticket."""


class _Other(Struct):
    """Requests of another router at each replica."""

    at: float
    in_flight: dict[tuple[str, int, int], int]
    services: frozenset[str]


class Routing:
    """`waiting_max`: waiting requests of all services together. At this limit the tenant with the most gives way to one
    with fewer."""

    def __init__(self, *, waiting_max: int = 20_000) -> None:
        self.queues: dict[str, ServiceQueue] = {}
        self.requests: dict[int, InFlightRequest] = {}
        self._waiting_of: Counter[str] = Counter()  # by tenant, those with any
        self._gave_way: list[Answer] = []
        self.waiting = 0
        self.lost = 0  # requests whose end was never reported
        self._waiting_max = waiting_max
        self._numbers = count(1)
        self._places: dict[int, ServiceQueue] = {}  # waiting requests by ticket
        self._others: dict[tuple[str, int], _Other] = {}  # by router and part
        self._missing = 0  # requests that Caddy did not know at the last comparison

    # what is there

    def know(self, services: Iterable[RoutedService], now: float) -> list[Answer]:
        """Services that are new, or otherwise than before."""
        answers: list[Answer] = []
        for service in services:
            queue = self.queues.get(service.job_id)
            if queue is None:
                self.queues[service.job_id] = ServiceQueue(service)
            elif queue.over or queue.service != service:
                queue.know(service)
                answers += self._go_on(queue, now)
        return answers

    def forget(self, job_ids: Iterable[str]) -> list[Answer]:
        """Remove ended services. Requests that wait for them are refused; requests at their replicas continue."""
        return [answer for job_id in job_ids for answer in self._end(self.queues[job_id])]

    def _end(self, queue: ServiceQueue) -> list[Answer]:
        queue.end()
        refusal = Refused(503, "this service has ended")
        answers: list[Answer] = [(waiter.ticket, refusal) for waiter in queue.waiters]
        for ticket, _ in answers:
            self._leave(queue, ticket)
        if not queue.backends:
            del self.queues[queue.service.job_id]
        return answers

    def hear(self, served: ServicesServed, now: float) -> None:
        """Update the requests of another router by replica, which use capacity there."""
        self._others[served.router, served.part] = _Other(
            now,
            {
                (service.job_id, replica.epoch, replica.rank): replica.in_flight
                for service in served.services
                for replica in service.replicas
                if replica.in_flight
            },
            frozenset(service.job_id for service in served.services if service.queued or _in_flight(service)),
        )

    # requests

    def ask(
        self,
        ticket: int,
        service: RoutedService,
        now: float,
        *,
        upgraded: bool = False,
        call: str = "",
        prompt: str = "",
        batch: bool = False,
    ) -> InFlightRequest | Refused | None:
        """None: it waits, and its answer comes later. `upgraded`: it becomes a connection of its own; `call`: its id at
        the front for models, `prompt`: as `Waiter` says; `batch`: it takes only what other requests leave."""
        queue = self.queues[service.job_id]
        queue.counts.arrived += not batch
        waiter = Waiter(
            ticket, now, now, now + service.timeout, upgraded=upgraded, call=call, prompt=prompt, batch=batch
        )
        return self._ask(queue, waiter, now)

    def _ask(self, queue: ServiceQueue, waiter: Waiter, now: float) -> InFlightRequest | Refused | None:
        if waiter.batch and not wakes(queue) and (none := no_idle_place(queue, now)) is not None:
            queue.counts.batch_refused += 1
            return none
        if not queue.line and (backend := queue.free(now, waiter.avoid, waiter.prompt)):
            return self._give(queue, waiter, backend, now)
        again = waiter.tries > 1
        if (full := None if again else self._full(queue)) is not None:
            queue.counts.refused += not waiter.batch
            return full
        queue.line[waiter.ticket] = waiter
        if again:  # it has waited once
            queue.line.move_to_end(waiter.ticket, last=False)
        self._places[waiter.ticket] = queue
        self.waiting += 1
        self._waiting_of[queue.service.tenant] += 1
        return None

    def _full(self, queue: ServiceQueue) -> Refused | None:
        refusal = queue.full()
        if refusal is not None and queue.behind and queue.waiting >= queue.service.queue:
            # A request that is late in any case loses its place.
            self._give_way(queue, next(iter(queue.behind)), refusal)
            return None
        if refusal is None and self.waiting >= self._waiting_max and not self._make_room(queue.service.tenant):
            refusal = self._no_room()
        return refusal

    def _no_room(self) -> Refused:
        return Refused(429, f"{self.waiting} requests wait for services already", 1.0)

    def _make_room(self, tenant: str) -> bool:
        """Refuse the newest request of the tenant with the most, so that no tenant excludes all others. Return False if
        this tenant would then have as many."""
        most, count = self._waiting_of.most_common(1)[0]
        if self._waiting_of[tenant] + 1 >= count:
            return False
        theirs = (queue for queue in self.queues.values() if queue.waiting and queue.service.tenant == most)
        queue = max(theirs, key=lambda one: one.waiting)
        self._give_way(queue, next(reversed(queue.behind or queue.line)), self._no_room())
        return True

    def _give_way(self, queue: ServiceQueue, ticket: int, refusal: Refused) -> None:
        self._leave(queue, ticket)
        queue.counts.refused += 1
        self._gave_way.append((ticket, refusal))

    def gone(self, ticket: int) -> None:
        """The client left while its request waited."""
        if (queue := self._places.get(ticket)) is not None:
            self._leave(queue, ticket)

    def _leave(self, queue: ServiceQueue, ticket: int) -> None:
        queue.remove(ticket)
        del self._places[ticket]
        self.waiting -= 1
        tenant = queue.service.tenant
        self._waiting_of[tenant] -= 1
        if not self._waiting_of[tenant]:
            del self._waiting_of[tenant]

    def _give(self, queue: ServiceQueue, waiter: Waiter, backend: Backend, now: float) -> InFlightRequest:
        request = InFlightRequest(
            next(self._numbers),
            queue.service.job_id,
            backend,
            waiter.arrived,
            now,
            waiter.deadline,
            waiter.tries,
            waiter.runs,
            waiter.upgraded,
            waiter.call,
            waiter.batch,
        )
        self.requests[request.number] = backend.requests[request.number] = request
        if not waiter.batch:
            queue.waited(now - waiter.since)
        return request

    def _go_on(self, queue: ServiceQueue, now: float) -> list[Answer]:
        """Send waiting requests to replicas with room."""
        answers: list[Answer] = []
        while (waiter := queue.first(now)) is not None:
            backend = queue.free(now, waiter.avoid, waiter.prompt)
            if backend is None:
                break
            self._leave(queue, waiter.ticket)
            answers.append((waiter.ticket, self._give(queue, waiter, backend, now)))
        return answers

    # their ends

    def ended(self, number: int, now: float, *, status: int, first: float | None, took: float | None) -> list[Answer]:
        """Note the end of a request from Caddy, with the replica's status; 499: its client had left."""
        request = self._ends(number)
        if request is None:
            return []
        queue = self.queues[request.job_id]
        if status >= 500:
            queue.counts.failed += not request.batch
            request.backend.fell(now, at_once=False, may_rest=queue.may_rest(request.backend, now))
        elif status != 499:
            queue.answered(request, first=first, took=now - request.granted if took is None else took)
        return self._after(queue, request.backend, now)

    def failed(
        self, number: int, ticket: int, now: float, *, method: str, error: str, status: int
    ) -> tuple[InFlightRequest | Refused | None, list[Answer]]:
        """Handle a request that Caddy could not pass on and whose answer has not begun.

        It goes to a replica again if it cannot have run, or may run twice. A request that reached no replica is
        repeated until one accepts it, or its longest wait is over.
        """
        request = self._ends(number)
        if request is None:
            return Refused(502, "the replica of this service did not answer"), []
        queue, at_once = self.queues[request.job_id], error.startswith("dial ")
        request.backend.fell(now, at_once=at_once, may_rest=at_once or queue.may_rest(request.backend, now))
        runs = request.runs + (not at_once)
        harmless = at_once or (method in SAFE and runs < RUNS_MAX)
        if harmless and request.tries < TRIES_MAX and now < request.deadline and not queue.over:
            avoid = None if at_once else request.backend  # a replica that accepts no connection is paused for all
            again = Waiter(
                *(ticket, request.arrived, now, request.deadline, request.tries + 1, runs, avoid, request.upgraded),
                call=request.call,
                batch=request.batch,
            )
            answer = self._ask(queue, again, now)
        else:
            queue.counts.failed += not request.batch
            answer = _no_answer(queue, at_once=at_once, status=status)
        return answer, self._after(queue, request.backend, now)

    def _ends(self, number: int) -> InFlightRequest | None:
        request = self.requests.pop(number, None)
        if request is not None:
            del request.backend.requests[number]
        return request

    def _after(self, queue: ServiceQueue, backend: Backend, now: float) -> list[Answer]:
        queue.clear(backend)
        if queue.over and not queue.backends:
            self.queues.pop(queue.service.job_id, None)
        waiter = queue.first(now)
        if waiter is None:
            return []
        if (
            waiter.avoid is None and backend.room(queue.service.concurrency, queue.routers, now) == 1
        ):  # as usual: it was full
            self._leave(queue, waiter.ticket)
            return [(waiter.ticket, self._give(queue, waiter, backend, now))]
        return self._go_on(queue, now)

    # from time to time

    def tick(self, now: float) -> list[Answer]:
        """Refuse requests that have waited too long; use capacity that became free by itself."""
        self._count_others(now)
        answers, self._gave_way = self._gave_way, []
        for queue in {id(queue): queue for queue in self._places.values()}.values():
            answers += self._go_on(queue, now)
            for waiter in [waiter for waiter in queue.waiters if waiter.deadline <= now]:
                self._leave(queue, waiter.ticket)
                queue.counts.failed += not waiter.batch
                answers.append((waiter.ticket, _waited_too_long(queue)))
        return answers

    def _count_others(self, now: float) -> None:
        for key in [key for key, other in self._others.items() if now - other.at > OTHERS_SECONDS]:
            del self._others[key]
        if not self._others and all(queue.routers == 1 for queue in self.queues.values()):
            return
        for job_id, queue in self.queues.items():
            there = {router for (router, _), other in self._others.items() if job_id in other.services}
            queue.routers = 1 + len(there)
            for (epoch, rank), backend in queue.backends.items():
                backend.others = sum(other.in_flight.get((job_id, epoch, rank), 0) for other in self._others.values())

    def settle(self, passing: int, asked_at: float, now: float) -> list[Answer]:
        """Compare our count with Caddy's count of that time. If we count more at two comparisons, the ends of some
        requests were lost: end the excess number of requests, those first that last longest relative to the usual time
        at their replica."""
        settled = [request for request in self.requests.values() if request.granted < asked_at - LOST_SECONDS]
        missing = len(settled) - passing
        lost, self._missing = min(missing, self._missing), max(0, missing)
        if lost <= 0:
            return []
        settled.sort(key=lambda request: (request.upgraded, -(now - request.granted) / (request.backend.speed or 1.0)))
        return self._lose(settled[:lost], now)

    def lose_all(self, now: float) -> list[Answer]:
        """Caddy has ended, and with it every request that it passed on."""
        self._missing = 0
        return self._lose([*self.requests.values()], now)

    def _lose(self, requests: Iterable[InFlightRequest], now: float) -> list[Answer]:
        answers: list[Answer] = []
        for request in requests:
            self.lost += 1
            self._ends(request.number)
            answers += self._after(self.queues[request.job_id], request.backend, now)
        return answers

    # what is told

    def served(self, now: float) -> list[ServiceServed]:
        return [queue.served(now) for queue in self.queues.values()]

    def in_flight(self) -> Mapping[str, int]:
        """The requests at replicas, by service."""
        return {
            job_id: sum(len(backend.requests) for backend in queue.backends.values())
            for job_id, queue in self.queues.items()
        }


def _in_flight(service: ServiceServed) -> int:
    return sum(replica.in_flight for replica in service.replicas)


def _no_answer(queue: ServiceQueue, *, at_once: bool, status: int) -> Refused:
    if status == 504:
        return Refused(504, f"the replica did not begin its answer within {queue.service.timeout:g} s")
    if at_once:
        return Refused(502, "no replica of this service could be reached", 1.0)
    return Refused(502, "the replica ended the connection before it answered; the request may have run")


def _waited_too_long(queue: ServiceQueue) -> Refused:
    waited = f"this request has waited {queue.service.timeout:g} s for a replica"
    ready = [backend for backend in queue.backends.values() if backend.replica.takes and not backend.gone]
    if not ready:
        return Refused(503, f"{waited}, and none is ready", 1.0, unready=True)
    if all(backend.unreached for backend in ready):
        return Refused(503, f"{waited}, and none could be reached", 1.0)
    return Refused(503, f"{waited}: each is at its limit of concurrent requests", 1.0)
