"""What a service would have held if all its arrivals had been known: the least number of replicas in each window of ten
seconds with which no window breaks the objective, each started in time.

A replica that would be gone for less than it takes to start is kept: to start it again would cost more.
"""

from heapq import heapify, heappop, heappush
from math import floor
from zlib import crc32

import numpy as np

from weft.simulator.serving.rates import arrivals_of, drawn
from weft.simulator.serving.served import WINDOW_S
from weft.simulator.serving.service import TraceService


def oracle_gpu_s(service: TraceService, lasts_s: float, seed: int) -> float:
    """GPU-seconds, of a service with whole GPUs."""
    name = crc32(service.name.encode())
    arrivals = arrivals_of(service.rate, lasts_s, np.random.default_rng([seed, name, 0]))
    works = drawn(service.work.mean_s, service.work.cv, len(arrivals), np.random.default_rng([seed, name, 1]))
    sizes = least_sizes(service, arrivals.tolist(), works.tolist(), lasts_s)
    return held(sizes, service.start.mean_s) * service.gpus


def least_sizes(service: TraceService, arrivals: list[float], works: list[float], lasts_s: float) -> list[int]:
    """Replicas in each window."""
    assert service.latency_s is not None
    free: list[float] = []
    sizes: list[int] = []
    at = 0
    for window in range(int(np.ceil(lasts_s / WINDOW_S))):
        begin = window * WINDOW_S
        end = at
        while end < len(arrivals) and arrivals[end] < begin + WINDOW_S:
            end += 1
        allowed = floor((end - at) * (1 - service.percentile / 100) + 1e-9)
        size = max(service.least, 1 if end > at else 0)
        offered = sum(works[at:end]) / WINDOW_S / service.concurrency
        size = min(service.most, max(size, floor(offered)))
        while True:
            slots = _slots(free, size * service.concurrency, begin)
            late = _serve(slots, arrivals[at:end], works[at:end], service.latency_s, allowed)
            if late <= allowed or size >= service.most:
                break
            size += 1
        free, at = slots, end
        sizes.append(size)
    return sizes


def held(sizes: list[int], start_s: float) -> float:
    """Replica-seconds, starts included; the replicas of the first window are there already."""
    total = 0.0
    for level in range(1, max(sizes, default=0) + 1):
        there = [place for place, size in enumerate(sizes) if size >= level]
        first = before = there[0]
        total += 0.0 if first == 0 else start_s
        for place in there[1:]:
            gap = (place - before - 1) * WINDOW_S
            total += min(gap, start_s)
            before = place
        total += len(there) * WINDOW_S
    return total


def _slots(free: list[float], count: int, begin: float) -> list[float]:
    """When each slot is free; idle slots leave first, and new ones are free at once."""
    kept = sorted(free, reverse=True)[:count]
    kept += [begin] * (count - len(kept))
    heapify(kept)
    return kept


def _serve(free: list[float], arrivals: list[float], works: list[float], late_s: float, allowed: int) -> int:
    """How many are late, at least; it stops once they are too many."""
    late = 0
    for at, work in zip(arrivals, works, strict=True):
        if not free:
            return len(arrivals)
        end = max(at, heappop(free)) + work
        heappush(free, end)
        late += end - at > late_s
        if late > allowed:
            break
    return late
