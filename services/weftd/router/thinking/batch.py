"""Batch requests: they take the places at replicas that other requests leave idle, and do not wait in a queue.

A client marks one with the header `Weft-Priority: batch`. The router answers 429 while another request of the service
waits, or while fewer places than a quarter would stay free: the client asks again later. Batch requests are not counted
as load, so that no replica is added for them; but one alone waits for the first replica of a service at zero.
"""

from weftd.router.thinking.backends import Backend
from weftd.router.thinking.routes import Refused
from weftd.router.thinking.service_queue import ServiceQueue

PRIORITY = "Weft-Priority"
BATCH = "batch"
FREE_PART = 4  # a quarter of the places at replicas, rounded down, stays free for other requests
AGAIN_SECONDS = 1.0
SHOWN_MAX = 40


def is_batch(priority: str) -> bool | Refused:
    """Read the value of the header; empty: the client sent none."""
    if priority in ("", BATCH):
        return priority == BATCH
    return Refused(400, f"{PRIORITY} must be {BATCH}, got {priority[:SHOWN_MAX]!r}")


def wakes(queue: ServiceQueue) -> bool:
    """Return True if a batch request waits like any other, so that the service gets its first replica."""
    return not queue.waiting and not _ready(queue)


def no_idle_place(queue: ServiceQueue, now: float) -> Refused | None:
    """The refusal of a batch request; None: a place is idle."""
    concurrency, ready = queue.service.concurrency, _ready(queue)
    if not ready:
        return Refused(503, "requests wait already, and no replica is ready", AGAIN_SECONDS, unready=True)
    if queue.waiting:
        words = f"{queue.waiting} other requests wait for this service: batch requests come after them"
        return Refused(429, words, AGAIN_SECONDS)
    free = sum(max(0, backend.room(concurrency, queue.routers, now)) for backend in ready)
    kept = concurrency * len(ready) // FREE_PART
    if free <= kept:
        words = f"{free} of {concurrency * len(ready)} places at replicas are free"
        words += f", and {kept} are kept for other requests" if kept else ""
        return Refused(429, words, AGAIN_SECONDS)
    return None


def _ready(queue: ServiceQueue) -> list[Backend]:
    return [backend for backend in queue.backends.values() if backend.replica.takes and not backend.gone]
