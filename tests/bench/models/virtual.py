"""One service in virtual time: the router's own routing, emulated engines, an autoscaler that decides each second."""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from msgspec import Struct, structs

from tests.support.emulated_engine import Ask, EmulatedEngine
from weft.serving.loads import Autoscaler, ReplicaLoad, ServiceLoad
from weftd.router.thinking.backends import Backend, InFlightRequest
from weftd.router.thinking.routes import Refused
from weftd.router.thinking.routing import Answer, Routing
from weftd.router.thinking.service_queue import ServiceQueue
from weftd.router.thinking.table import RoutedReplica, RoutedService
from weftd.router.thinking.usage import AnswerRead

TICK_S = 1.0
CONCURRENCY = 64
TURNS, USUAL, PROMPT = "round robin", "least expected time", "beginning of the prompt"


class Words(Struct, frozen=True):
    """An objective."""

    ttft: float
    tpot: float
    percentile: float

    def is_late(self, ask: Ask) -> bool:
        return ask.first - ask.at > self.ttft or ask.each > self.tpot


class _InTurns(ServiceQueue):
    """Round robin, which the router does not offer."""

    def free(self, now: float, avoid: Backend | None = None, prompt: str = "") -> Backend | None:
        there = [one for one in self.backends.values() if one.room(self.service.concurrency, 1, now) > 0]
        self._next += 1
        return there[self._next % len(there)] if there else None


class Virtual:
    """`run` serves requests in the order of their times. `ended`: all that were answered. `tokens`: the front reads the
    answers; without it only requests are counted."""

    def __init__(
        self,
        words: Words,
        *,
        replicas: int,
        choice: str = PROMPT,
        rule: Autoscaler | None = None,
        tokens: bool = True,
        start_s: float = 20.0,
        cache_tokens: int | None = None,
    ) -> None:
        self.words, self._rule, self._tokens, self._choice = words, rule, tokens, choice
        self._start_s, self._cache = start_s, {} if cache_tokens is None else {"cache_tokens": cache_tokens}
        self.ended: list[Ask] = []
        self.gpu_s, self.refused, self.sizes = 0.0, 0, [replicas]
        self._routing = Routing()
        self._engines: dict[int, EmulatedEngine] = {}
        self._ready: dict[int, float] = {}  # when each replica is, or was
        self._leaving: set[int] = set()
        self._asks: dict[int, Ask] = {}  # that wait or run, by ticket
        self._given: dict[int, InFlightRequest] = {}
        self._events: list[tuple[float, int]] = []
        self._service = RoutedService(
            job_id="j",
            name="chat",
            tenant="t",
            seq=1,
            concurrency=CONCURRENCY,
            queue=100_000,
            timeout=3600.0,
            prefix="",
            h2c=False,
            public=False,
            latency=words.ttft,
            ttft=words.ttft if tokens else None,
            tpot=words.tpot if tokens else None,
            models=("m",),
        )
        if choice == TURNS:
            self._routing.queues["j"] = _InTurns(self._service)
        for rank in range(replicas):
            self._add(rank, -start_s)
        self._know(0.0)

    def run(self, asks: Iterable[Ask], lasts_s: float) -> "Virtual":
        tick = TICK_S
        for ask in asks:
            while tick <= ask.at:
                self._to(tick)
                self._tick(tick)
                tick += TICK_S
            self._to(ask.at)
            self._asks[ask.number] = ask
            prompt = f"{ask.session}" if self._choice == PROMPT and ask.session >= 0 else ""
            call = "c" if self._tokens else ""
            answer = self._routing.ask(ask.number, self._service, ask.at, call=call, prompt=prompt)
            if answer is not None:
                self._answered([(ask.number, answer)], ask.at)
        while tick <= lasts_s or self._asks:
            self._to(tick)
            self._tick(tick, counts=tick <= lasts_s)
            tick += TICK_S
        return self

    def _to(self, now: float) -> None:
        """All that engines finish until then."""
        while self._events and self._events[0][0] <= now:
            at, rank = heappop(self._events)
            engine = self._engines.get(rank)
            if engine is None or engine.next_at() > at + 1e-9:
                continue  # another request came meanwhile
            self._finish(engine.run(engine.next_at()), at)
            self._due(rank)

    def _finish(self, ended: Sequence[Ask], now: float) -> None:
        queue = self._routing.queues["j"]
        for ask in ended:
            del self._asks[ask.number]
            request = self._given.pop(ask.number)
            self.ended.append(ask)
            if self._tokens:
                read = AnswerRead(
                    status=200,
                    streamed=True,
                    whole=True,
                    usage=True,
                    first=ask.first - ask.at,
                    each=ask.each if ask.tokens_out > 1 else None,
                    took=ask.ended - ask.at,
                    tokens_in=ask.tokens_in,
                    tokens_out=ask.tokens_out,
                    cached=ask.cached,
                )
                queue.read(read, waited=request.granted - request.arrived)
            first, took = ask.first - request.granted, ask.ended - request.granted
            self._answered(self._routing.ended(request.number, now, status=200, first=first, took=took), now)

    def _answered(self, answers: Iterable[Answer], now: float) -> None:
        for number, answer in answers:
            if isinstance(answer, Refused):
                self.refused += 1
                del self._asks[number]
                continue
            rank = answer.backend.replica.rank
            self._given[number] = answer
            self._finish(self._engines[rank].take(self._asks[number], now), now)
            self._due(rank)

    def _due(self, rank: int) -> None:
        if (at := self._engines[rank].next_at()) < float("inf"):
            heappush(self._events, (at, rank))

    # the size

    def _tick(self, now: float, *, counts: bool = True) -> None:
        if counts:
            self.gpu_s += TICK_S * len(self._engines)
            self.sizes.append(len(self._engines))
        self._answered(self._routing.tick(now), now)
        for rank in [one for one in self._leaving if not self._engines[one].load]:
            self._leaving.discard(rank)
            del self._engines[rank], self._ready[rank]
        if self._rule is not None and counts:
            self._resize(self._rule.decide(self._load(now)).replicas, now)
        self._know(now)

    def _resize(self, wanted: int, now: float) -> None:
        there = [rank for rank in self._engines if rank not in self._leaving]
        for rank in sorted(there, key=lambda one: (self._ready[one] <= now, self._engines[one].load, -one)):
            if len(there) <= wanted:
                break
            there.remove(rank)
            self._leaving.add(rank)
        free = (rank for rank in range(10_000) if rank not in self._engines)
        for _ in range(wanted - len(there)):
            self._add(next(free), now)

    def _add(self, rank: int, now: float) -> None:
        self._engines[rank] = EmulatedEngine(**self._cache)
        self._engines[rank].run(max(0.0, now))
        self._ready[rank] = now + self._start_s

    def _know(self, now: float) -> None:
        replicas = tuple(
            RoutedReplica(
                epoch=0,
                rank=rank,
                address=f"emulated:{rank}",
                takes=self._ready[rank] <= now and rank not in self._leaving,
                draining=rank in self._leaving,
            )
            for rank in self._engines
        )
        if replicas != self._service.replicas:
            self._service = structs.replace(self._service, replicas=replicas)
            self._answered(self._routing.know([self._service], now), now)

    def _load(self, now: float) -> ServiceLoad:
        (served,) = self._routing.served(now)
        told = {one.rank: one for one in served.replicas}
        replicas = tuple(
            ReplicaLoad(
                rank=rank,
                ready=self._ready[rank] <= now,
                draining=rank in self._leaving,
                in_flight=told[rank].in_flight if rank in told else 0,
                answered=told[rank].answered if rank in told else 0,
                started_at=self._ready[rank] - self._start_s,
                ready_at=self._ready[rank] if self._ready[rank] <= now else None,
                kv_used=engine.kv_used if self._tokens else None,
                engine_waiting=0 if self._tokens else None,
            )
            for rank, engine in self._engines.items()
        )
        return ServiceLoad(
            at=now,
            replicas=replicas,
            wanted=len(self._engines) - len(self._leaving),
            arrived=served.arrived,
            answered=served.answered,
            refused=served.refused,
            failed=served.failed,
            late=served.late,
            queued=served.queued,
            oldest_wait=served.oldest_wait,
            in_flight=sum(one.in_flight for one in served.replicas),
            waits=served.waits,
            services=served.services,
            totals=served.totals,
            tokens_out=served.tokens_out,
            token_times=served.token_times,
        )
