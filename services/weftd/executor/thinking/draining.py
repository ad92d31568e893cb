"""Decides how long a run that serves requests may finish them before it is stopped. No clock, no I/O.

The run leaves its node's orders; the node says `draining`, and waits until each router that is there has said that it
has no more requests at the run. A router that knows nothing of the run leaves it out, which counts once it cannot have
been sent before the news of the drain. After a restart of the executor the wait begins anew.
"""

import math
from collections.abc import Set

from msgspec import Struct, field

from weft.messages.serving import ServicesServed
from weftd.executor.runs import RunKey

DRAIN_SECONDS_MAX = 3600.0
ROUTER_SECONDS = 5.0  # a router that is silent for longer is gone
ALONE_SECONDS = 0.5  # how long to wait where there is no router
HEARD_SECONDS = 2.5  # after its start an executor has heard every router
LEFT_OUT_SECONDS = 0.25  # a message that comes so long after the drain began was sent after its news
ROUTERS_MAX = 256


class _Router(Struct):
    """The last message of one router, and the draining runs for which it has no more requests."""

    heard_at: float
    newest: tuple[str, int] = ("", -1)  # boot and number of its newest message
    since: float = 0.0  # when the first part of that message came
    parts: set[int] = field(default_factory=set)
    named: set[RunKey] = field(default_factory=set)
    done: set[RunKey] = field(default_factory=set)


class Draining:
    """`listens_since`: since when this executor hears routers."""

    def __init__(self) -> None:
        self.listens_since = -math.inf
        self._since: dict[RunKey, float] = {}
        self._seconds: dict[RunKey, float] = {}
        self._routers: dict[str, _Router] = {}

    @property
    def keys(self) -> Set[RunKey]:
        return self._since.keys()

    def begin(self, key: RunKey, seconds: float, now: float) -> bool:
        """Begin to drain a run, for `seconds` at most. False if that is under way."""
        if key in self._since:
            return False
        self._since[key] = now
        self._seconds[key] = min(seconds, DRAIN_SECONDS_MAX) if seconds > 0 else 0.0  # NaN: not at all
        for router in self._routers.values():
            router.done.discard(key)
        return True

    def hurry(self, seconds_max: float) -> None:
        """No drain takes longer than this, from its beginning."""
        self._seconds = {key: min(seconds, seconds_max) for key, seconds in self._seconds.items()}

    def over(self, key: RunKey, now: float) -> bool:
        """Whether a draining run has no more requests, or its time is over."""
        since = self._since[key]
        if now >= since + self._seconds[key]:
            return True
        there = [router for router in self._routers.values() if now - router.heard_at <= ROUTER_SECONDS]
        if not there:
            return now >= max(since + ALONE_SECONDS, self.listens_since + HEARD_SECONDS)
        return all(key in router.done for router in there)

    def keep(self, keys: Set[RunKey]) -> None:
        """Forget all other runs: they ended, or they are ordered again."""
        for key in self._since.keys() - keys:
            del self._since[key], self._seconds[key]
            for router in self._routers.values():
                router.done.discard(key)

    def heard(self, served: ServicesServed, now: float) -> bool:
        """Take in one message of a router. True if it may have ended a drain."""
        router = self._routers.setdefault(served.router, _Router(heard_at=now))
        router.heard_at = now
        self._bound()
        if (served.boot, served.seq) != router.newest:
            router.newest, router.since, router.parts, router.named = (served.boot, served.seq), now, set(), set()
        router.parts.add(served.part)
        if not self._since:
            return False
        before = len(router.done)
        jobs = {key.job_id for key in self._since}
        for service in served.services:
            if service.job_id in jobs:
                for replica in service.replicas:
                    key = RunKey(service.job_id, replica.epoch, replica.rank)
                    if key in self._since:
                        router.named.add(key)
                        done = replica.draining and not replica.in_flight
                        (router.done.add if done else router.done.discard)(key)
        if len(router.parts) >= served.parts:
            left_out = self._since.keys() - router.named
            router.done |= {key for key in left_out if router.since >= self._since[key] + LEFT_OUT_SECONDS}
        return len(router.done) > before

    def _bound(self) -> None:
        if len(self._routers) > ROUTERS_MAX:
            del self._routers[min(self._routers, key=lambda name: self._routers[name].heard_at)]
