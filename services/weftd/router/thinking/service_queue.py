"""The queue of one service: its waiting requests in order of arrival, and its replicas.

With an objective, requests that cannot keep it any more wait behind all that still can (`weft.serving.lateness`). An
objective in words of tokens is judged by the answers that the front for models reads.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

from msgspec import Struct

from weft.messages.bounds import COUNT_MAX
from weft.messages.serving import BUCKET_FIRST_SECONDS, BUCKET_GROWTH, BUCKETS_MAX, ReplicaServed, ServiceServed
from weft.serving.lateness import AnswerTimes
from weftd.router.thinking.affinity import PrefixRing, load_bound
from weftd.router.thinking.backends import Backend, InFlightRequest
from weftd.router.thinking.routes import Refused
from weftd.router.thinking.table import RoutedService, RunKey
from weftd.router.thinking.usage import AnswerRead

RETRY_SECONDS_MAX = 30.0
LOOKED_AT_MAX = 32  # replicas, for one request
_LOG_GROWTH = math.log(BUCKET_GROWTH)


class Waiter(Struct):
    """One request that waits. `ticket`: by which its connection is found; `runs`: how often it may have run; `avoid`:
    where it failed before; `call`: its id at the front for models, `prompt`: the same for prompts that begin alike."""

    ticket: int
    arrived: float
    since: float
    deadline: float
    tries: int = 1
    runs: int = 0
    avoid: Backend | None = None
    upgraded: bool = False
    call: str = ""
    prompt: str = ""
    batch: bool = False


class ServiceQueue:
    """The requests of one service at this router."""

    def __init__(self, service: RoutedService) -> None:
        self.service = service
        self.line: OrderedDict[int, Waiter] = OrderedDict()
        self.behind: OrderedDict[int, Waiter] = OrderedDict()  # late in any case
        self.backends: dict[RunKey, Backend] = {}
        self.counts = Counts()
        self.routers = 1  # routers with requests of this service, this one included
        self.over = False  # the service is no more
        self._next = 0
        self._times = AnswerTimes()
        self._ring = PrefixRing()
        self.know(service)

    def know(self, service: RoutedService) -> None:
        """Update the service. A removed replica stays until its requests have ended."""
        self.service, self.over = service, False
        there = set()
        for replica in service.replicas:
            there.add(replica.key)
            backend = self.backends.get(replica.key)
            if backend is None:
                self.backends[replica.key] = Backend(replica)
            else:
                backend.replica, backend.gone = replica, False
        for key in [key for key in self.backends if key not in there]:
            self.backends[key].gone = True
            self.clear(self.backends[key])

    def end(self) -> None:
        self.over = True
        for backend in [*self.backends.values()]:
            backend.gone = True
            self.clear(backend)

    def clear(self, backend: Backend) -> None:
        if backend.gone and not backend.requests:
            self.backends.pop(backend.replica.key, None)

    # what waits

    @property
    def waiting(self) -> int:
        return len(self.line) + len(self.behind)

    @property
    def waiters(self) -> list[Waiter]:
        return [*self.line.values(), *self.behind.values()]

    def first(self, now: float) -> Waiter | None:
        """The next request; None if none waits."""
        if not self.line and not self.behind:
            return None
        self._put_behind(now)
        return next(iter((self.line or self.behind).values()))

    def remove(self, ticket: int) -> None:
        del (self.line if ticket in self.line else self.behind)[ticket]

    def _put_behind(self, now: float) -> None:
        latency = self.service.latency
        if latency is None or not self.line:
            return
        since = now - self._times.patience(latency)
        while self.line:
            ticket, waiter = next(iter(self.line.items()))
            if waiter.arrived >= since or waiter.upgraded:
                break
            self.behind[ticket] = self.line.pop(ticket)

    # giving requests to replicas

    def free(self, now: float, avoid: Backend | None = None, prompt: str = "") -> Backend | None:
        """The replica that would answer the next request first, of those that have room; None: none has. One whose node
        is not heard gets it only if no other has room, one where the request failed before only if there is no other
        that takes requests. A `prompt` goes where others like it went, as long as that has its part of all alone."""
        if prompt and (sticky := self._sticky(prompt, now, avoid)) is not None:
            return sticky
        found: Backend | None = None
        least, looked = (True, math.inf), 0
        usual = self._usual()
        for backend in self._in_turn():
            if backend is avoid or backend.room(self.service.concurrency, self.routers, now) < 1:
                continue
            looked += not backend.replica.quiet
            if (cost := (backend.replica.quiet, backend.cost(usual))) < least:
                found, least = backend, cost
            if looked == LOOKED_AT_MAX:
                break
        self._next += 1
        if found is None and avoid is not None and not self._other_than(avoid, now):
            return self.free(now)
        return found

    def _sticky(self, prompt: str, now: float, avoid: Backend | None) -> Backend | None:
        """None: all that it could go to have more than their part."""
        there = {key: one for key, one in self.backends.items() if one.replica.takes and not one.gone}
        if len(there) < 2:
            return None
        self._ring.know(there)
        bound = load_bound(sum(len(one.requests) + one.others for one in there.values()), len(there))
        for key in self._ring.order(prompt):
            backend = there[key]
            if backend is avoid or backend.replica.quiet or len(backend.requests) + backend.others >= bound:
                continue
            if backend.room(self.service.concurrency, self.routers, now) > 0:
                return backend
        return None

    def _in_turn(self) -> Iterator[Backend]:
        """All replicas, starting from the next one each time, so that equal ones take turns."""
        backends = [*self.backends.values()]
        begin = self._next % len(backends) if backends else 0
        yield from backends[begin:]
        yield from backends[:begin]

    def may_rest(self, failed: Backend, now: float) -> bool:
        """True if this replica may be paused: another one takes requests."""
        return self._other_than(failed, now)

    def _other_than(self, avoid: Backend, now: float) -> bool:
        return any(
            backend is not avoid and backend.replica.takes and not backend.gone and now >= backend.alone_until
            for backend in self.backends.values()
        )

    def _usual(self) -> float:
        """The mean time of a request at the replicas that have had any."""
        known = (
            [backend.speed for backend in self.backends.values() if backend.speed is not None]
            if len(self.backends) < 64
            else []
        )
        return sum(known) / len(known) if known else 1.0

    # bounds

    def places(self) -> int:
        """Concurrent requests of all replicas that take any."""
        taking = sum(backend.replica.takes and not backend.gone for backend in self.backends.values())
        return taking * max(1, self.service.concurrency // self.routers)

    def expected_wait(self) -> float | None:
        """Expected wait in seconds of a request that comes now; None if unknown."""
        known = [backend.speed for backend in self.backends.values() if backend.speed is not None]
        places = self.places()
        if not known or not places:
            return None
        return len(self.line) * (sum(known) / len(known)) / places

    def full(self) -> Refused | None:
        """Why no further request can wait; None if one can."""
        expected = self.expected_wait()
        again = min(max(1.0, expected or 1.0), RETRY_SECONDS_MAX)
        if self.waiting >= self.service.queue:
            return Refused(429, f"{self.waiting} requests wait for this service already", again)
        if self.service.latency is not None and expected is not None and expected > self.service.timeout:
            words = f"this service can take one more request in {expected:.1f} s"
            return Refused(429, f"{words}, and its longest wait is {self.service.timeout:g} s", again)
        return None

    # the ends of requests

    def waited(self, seconds: float) -> None:
        self.counts.waits[bucket_of(seconds)] += 1

    def answered(self, request: InFlightRequest, *, first: float | None, took: float) -> None:
        """`first`: seconds from being given to the replica to the first byte of its answer, if known."""
        if request.batch:
            self.counts.batch_answered += 1
            request.backend.did_well()
            return
        self.counts.answered += 1
        request.backend.did(took, timed=not request.upgraded)
        if request.upgraded:
            return
        self.counts.services[bucket_of(took)] += 1
        if request.call and self.service.ttft is not None:
            return  # its first byte says nothing of its first token: `read` judges it
        begun = took if first is None else first
        self._times.take(begun)
        total = request.granted - request.arrived + begun
        self.counts.totals[bucket_of(total)] += 1
        if self.service.latency is not None and total > self.service.latency:
            self.counts.late += 1

    def read(self, answer: AnswerRead, *, waited: float, batch: bool = False) -> None:
        """The front has read an answer, whose request had waited this number of seconds for its replica."""
        if batch:
            return  # no objective holds for it, and its tokens ask for no replica
        counts, service = self.counts, self.service
        counts.read += 200 <= answer.status < 300
        counts.tokens_in += answer.tokens_in
        counts.tokens_out += answer.tokens_out
        counts.tokens_cached += answer.cached
        if answer.first is not None:
            counts.first_tokens[bucket_of(answer.first)] += 1
        if answer.each is not None:
            counts.token_times[bucket_of(answer.each)] += 1
        if service.ttft is None or not answer.whole or not 200 <= answer.status < 300:
            return
        first = first_token(answer, service.tpot)
        self._times.take(max(0.0, first - waited))
        counts.totals[bucket_of(first)] += 1
        if first > service.ttft or (service.tpot is not None and (answer.each or 0.0) > service.tpot):
            counts.late += 1

    # what is told

    @property
    def wants_replica(self) -> bool:
        """True if a request waits and no replica could take it."""
        return self.waiting > 0 and not any(
            backend.replica.takes and not backend.gone for backend in self.backends.values()
        )

    def served(self, now: float) -> ServiceServed:
        counts = self.counts
        return ServiceServed(
            job_id=self.service.job_id,
            arrived=counts.arrived,
            answered=counts.answered,
            refused=counts.refused,
            failed=counts.failed,
            late=counts.late,
            queued=self.waiting,
            oldest_wait=max(
                (now - next(iter(part.values())).since for part in (self.line, self.behind) if part), default=0.0
            ),
            waits=dict(counts.waits),
            services=dict(counts.services),
            totals=dict(counts.totals),
            tokens_in=min(counts.tokens_in, COUNT_MAX),
            tokens_out=min(counts.tokens_out, COUNT_MAX),
            tokens_cached=min(counts.tokens_cached, COUNT_MAX),
            first_tokens=dict(counts.first_tokens),
            token_times=dict(counts.token_times),
            replicas=tuple(_served(self.backends.values())),
        )


def _served(backends: Iterable[Backend]) -> Iterator[ReplicaServed]:
    for backend in backends:
        yield ReplicaServed(
            epoch=backend.replica.epoch,
            rank=backend.replica.rank,
            in_flight=len(backend.requests),
            answered=backend.answered,
            failed=backend.failed,
            busy_seconds=backend.busy_seconds,
            draining=backend.gone or backend.replica.draining,
            engine_waiting=backend.engine.waiting,
            kv_used=backend.engine.kv_used,
        )


def bucket_of(seconds: float) -> int:
    """The bucket of a time: 0 up to `BUCKET_FIRST_SECONDS`, the last one all beyond."""
    if not seconds > BUCKET_FIRST_SECONDS:
        return 0
    # A tiny amount is subtracted, so that the bound of a bucket lies in it despite rounding of the logarithm.
    return min(math.ceil(math.log(seconds / BUCKET_FIRST_SECONDS) / _LOG_GROWTH - 1e-9), BUCKETS_MAX - 1)


def first_token(answer: AnswerRead, tpot: float | None) -> float:
    """Seconds to the first token. An answer that is no stream shows it to nobody: it is in time if the whole of it
    comes as soon as a stream in time would, and counts as that much sooner. Where nothing tells, to the first byte."""
    if answer.first is not None:
        return answer.first
    if tpot is not None and answer.usage and not answer.streamed:
        return max(0.0, answer.took - tpot * max(0, answer.tokens_out - 1))
    return answer.took if answer.begun is None else answer.begun


class Counts:
    """Counts of one service since the router began. Batch requests are counted apart: they ask for no more replicas."""

    def __init__(self) -> None:
        self.arrived = self.answered = self.refused = self.failed = self.late = 0
        self.batch_answered = self.batch_refused = 0
        self.waits: Counter[int] = Counter()
        self.services: Counter[int] = Counter()
        self.totals: Counter[int] = Counter()
        self.tokens_in = self.tokens_out = self.tokens_cached = 0
        self.read = 0  # answers that the front read
        self.first_tokens: Counter[int] = Counter()
        self.token_times: Counter[int] = Counter()

    @property
    def mean_tokens(self) -> float:
        """The mean of a request with its answer."""
        return (self.tokens_in + self.tokens_out) / self.read if self.read else 0.0
