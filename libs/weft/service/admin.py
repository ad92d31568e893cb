"""What a supervisor may ask a service: /healthz (do its loops still beat), /readyz (may it be used), /metrics."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol, runtime_checkable

import msgspec
from aiohttp import web
from prometheus_client import Histogram

from weft.bus import Bus
from weft.service.meters import Meters
from weft.version import version

logger = logging.getLogger(__name__)

PERIODS_MISSED_MAX = 5
SHUTDOWN_SECONDS_MAX = 1.0
SILENCE_SECONDS_MIN = 5.0  # A fast loop on a busy machine may be late by several periods and still be healthy.


@runtime_checkable
class Counting(Protocol):
    """A bus that counts the messages it lost."""

    @property
    def counts(self) -> Mapping[str, int]: ...


class Pulse(msgspec.Struct):
    period: float
    beaten_at: float

    def beats(self, now: float) -> bool:
        return now - self.beaten_at <= max(PERIODS_MISSED_MAX * self.period, SILENCE_SECONDS_MIN)


class Probes:
    """The health of this service. `now` is any clock that does not jump."""

    def __init__(self, meters: Meters, bus: Bus, now: Callable[[], float]) -> None:
        self.meters = meters
        self.ready = False
        self._bus = bus
        self._now = now
        self._pulses: dict[str, Pulse] = {}
        self.handled = meters.histogram("handled_seconds", "One message handled.", ["kind", "outcome"])
        self.beaten = meters.histogram("beat_seconds", "One beat of a loop.", ["loop", "outcome"])
        meters.gauge("bus_connected", "1 while the bus is connected.").set_function(lambda: float(bus.connected))
        meters.gauge("ready", "1 while ready.").set_function(lambda: float(self.ready))
        if isinstance(bus, Counting):
            meters.watch("bus_events", "What happened to the bus and its messages.", "what", lambda: bus.counts)

    def beat(self, loop: str, *, next_within: float) -> None:
        self._pulses[loop] = Pulse(next_within, self._now())

    @contextmanager
    def timing(self, histogram: Histogram, what: str) -> Iterator[None]:
        began, outcome = self._now(), "failed"
        try:
            yield
            outcome = "ok"
        finally:
            histogram.labels(what, outcome).observe(self._now() - began)

    @property
    def stuck(self) -> list[str]:
        """The loops that have stood still for too long."""
        now = self._now()
        return [name for name, pulse in self._pulses.items() if not pulse.beats(now)]

    def state(self) -> dict[str, Any]:
        now = self._now()
        loops = {
            name: {
                "period_seconds": pulse.period,
                "silent_seconds": round(now - pulse.beaten_at, 3),
                "healthy": pulse.beats(now),
            }
            for name, pulse in self._pulses.items()
        }
        return {
            "service": self.meters.service,
            "version": version(),
            "healthy": all(loop["healthy"] for loop in loops.values()),
            "ready": self.ready,
            # Shown, but no reason to be unhealthy: a restart of this process would not bring the server back.
            "bus": "connected" if self._bus.connected else "disconnected",
            "loops": loops,
        }


@asynccontextmanager
async def serving(probes: Probes, *, host: str, port: int | None) -> AsyncIterator[int | None]:
    """Serve on `port` (0: any free one) until the block ends. Yields the port; None: nothing is served."""
    if port is None:
        yield None
        return
    runner = web.AppRunner(_application(probes), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS_MAX)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        served = runner.addresses[0][1]
        logger.info("health and metrics on %s:%d", host, served)
        yield served
    finally:
        await asyncio.shield(runner.cleanup())


def _application(probes: Probes) -> web.Application:
    async def told(good: str) -> web.Response:
        state = probes.state()
        return web.Response(
            body=msgspec.json.encode(state), status=200 if state[good] else 503, content_type="application/json"
        )

    async def healthz(_: web.Request) -> web.Response:
        return await told("healthy")

    async def readyz(_: web.Request) -> web.Response:
        return await told("ready")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=probes.meters.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return application
