"""One round of the autoscaler for 1,000 services with 8,192 GPUs in all, as the reallocator asks it."""

import gc
from random import Random
from time import perf_counter, process_time

from tests.bench.figures import Aim, quantile
from weft.service.start import GARBAGE_EVERY
from weft.serving.loads import Goal, ReplicaLoad, ServiceLoad
from weft.serving.policies import autoscaler

SERVICES, GPUS = 1000, 8192
ROUNDS, ROUNDS_QUICK = 300, 60
WARM = 30
BUCKETS = 60


def measure(seed: int, *, quick: bool) -> dict[str, Aim]:
    gc.set_threshold(*GARBAGE_EVERY)  # as every service has it
    dice = Random(seed)
    each = GPUS // SERVICES
    goals = [
        Goal(least=1, most=4 * each, concurrency=dice.choice((1, 4, 16)), latency=0.5, percentile=99.0, rate=40.0)
        for _ in range(SERVICES)
    ]
    scalers = [autoscaler("weft", goal, at=0.0, start=20.0) for goal in goals]
    rates = [dice.uniform(5.0, 60.0) for _ in goals]
    arrived = [0] * SERVICES
    took: list[float] = []
    busy: list[float] = []
    for turn in range(WARM + (ROUNDS_QUICK if quick else ROUNDS)):
        burst = turn > WARM and dice.random() < 0.05
        for number, rate in enumerate(rates):
            arrived[number] += int(rate * (4 if burst and number % 10 == 0 else 1) + dice.random())
        loads = [_load(float(turn), arrived[number], rates[number], each, dice) for number in range(SERVICES)]
        begun, cpu = perf_counter(), process_time()
        for scaler, load in zip(scalers, loads, strict=True):
            scaler.decide(load)
        if turn >= WARM:
            took.append(perf_counter() - begun)
            busy.append(process_time() - cpu)
    print(
        f"{SERVICES:,} services, {GPUS:,} GPUs: a round p50 {quantile(took, 0.5) * 1000:.1f} ms,"
        f" p99 {quantile(took, 0.99) * 1000:.1f} ms, {len(took)} rounds;"
        f" CPU p50 {quantile(busy, 0.5) * 1000:.1f} ms",
        flush=True,
    )
    return {"simulated.decision_1000_services_p99_ms": Aim(value=round(quantile(took, 0.99) * 1000, 1), aim=100.0)}


def _load(at: float, arrived: int, rate: float, replicas: int, dice: Random) -> ServiceLoad:
    answered = max(0, arrived - 3)
    spread = dict.fromkeys(range(BUCKETS), answered // BUCKETS)
    return ServiceLoad(
        at=at,
        replicas=tuple(
            ReplicaLoad(
                rank=rank,
                ready=True,
                in_flight=dice.randrange(3),
                answered=answered // replicas,
                busy_seconds=0.1 * answered / replicas,
                started_at=-100.0,
                ready_at=-80.0,
            )
            for rank in range(replicas)
        ),
        wanted=replicas,
        arrived=arrived,
        answered=answered,
        queued=0,
        in_flight=int(rate * 0.1),
        waits={0: answered},
        services=spread,
        totals=spread,
        room=10,
    )
