"""A day of bursts, emulated: TTFT and TPOT kept, and the GPU-seconds for it, beside a rule that knows all arrivals."""

from math import floor
from statistics import fmean

import numpy as np

from tests.bench.figures import Aim
from tests.bench.models.virtual import CONCURRENCY, Virtual, Words
from tests.bench.serving.baselines import compared
from tests.bench.serving.oracle import held
from tests.bench.serving.rules import rate_of_day
from tests.support.emulated_engine import Ask
from weft.serving.loads import Goal
from weft.simulator.serving.rates import arrivals_of, drawn
from weft.simulator.serving.served import WINDOW_S

WORDS = Words(ttft=0.5, tpot=0.025, percentile=99.0)
MEAN_RATE, SWING, MOST = 12.0, 0.6, 64
TOKENS_IN, TOKENS_OUT = (1000.0, 0.8), (200.0, 0.7)  # mean and coefficient of variation, log-normal
START_S, BURSTS_S = 20.0, 1800.0
BY_TOKENS, BY_REQUESTS = "tokens", "requests"
OTHERS = ("knative", "hpa")  # with the constants that they have by themselves, not fitted


def asks_of(seed: int, lasts_s: float) -> list[Ask]:
    rate = rate_of_day(MEAN_RATE, swing=SWING, day_s=lasts_s, burst_every_s=BURSTS_S)
    at = arrivals_of(rate, lasts_s, np.random.default_rng([seed, 1]))
    sizes = [
        np.clip(drawn(*spread, len(at), np.random.default_rng([seed, 2 + place])), 2, 8000).astype(int).tolist()
        for place, spread in enumerate((TOKENS_IN, TOKENS_OUT))
    ]
    return [
        Ask(number=number, at=when, tokens_in=tokens_in, tokens_out=tokens_out)
        for number, (when, tokens_in, tokens_out) in enumerate(zip(at.tolist(), *sizes, strict=True))
    ]


def served(name: str, seed: int, lasts_s: float) -> Virtual:
    """By Weft's rule with tokens or with requests alone, or by another's with the constants that it has by itself."""
    goal = Goal(
        least=1,
        most=MOST,
        concurrency=CONCURRENCY,
        latency=WORDS.ttft,
        tpot=WORDS.tpot if name == BY_TOKENS else None,
        percentile=WORDS.percentile,
    )
    rule = compared("weft" if name in (BY_TOKENS, BY_REQUESTS) else name, goal, at=0.0, start=START_S, day=lasts_s)
    made = Virtual(WORDS, replicas=4, rule=rule, tokens=name == BY_TOKENS, start_s=START_S)
    return made.run(asks_of(seed, lasts_s), lasts_s)


def least_sizes(asks: list[Ask], lasts_s: float) -> list[int]:
    """For each window the fewest replicas with which it keeps the objective, if it finds them idle."""
    sizes, at, size = [], 0, 1
    for window in range(int(np.ceil(lasts_s / WINDOW_S))):
        begin, end = at, at
        while end < len(asks) and asks[end].at < (window + 1) * WINDOW_S:
            end += 1
        at = end
        allowed = floor((end - begin) * (1.0 - WORDS.percentile / 100.0) + 1e-9)
        size = max(1, size - 2)
        while size < MOST and _late(asks[begin:end], size) > allowed:
            size += 1
        while size > 1 and _late(asks[begin:end], size - 1) <= allowed:
            size -= 1
        sizes.append(size)
    return sizes


def _late(asks: list[Ask], replicas: int) -> int:
    if not asks:
        return 0
    begin = asks[0].at
    alone = [
        Ask(number=place, at=one.at - begin, tokens_in=one.tokens_in, tokens_out=one.tokens_out)
        for place, one in enumerate(asks)
    ]
    made = Virtual(WORDS, replicas=replicas, start_s=0.0).run(alone, 0.0)
    return sum(WORDS.is_late(one) for one in made.ended)


def bad_part(made: Virtual) -> float:
    return (sum(WORDS.is_late(one) for one in made.ended) + made.refused) / (len(made.ended) + made.refused)


def measure(seed: int, *, quick: bool) -> dict[str, Aim]:
    lasts_s, seeds = (3600.0, (seed,)) if quick else (4 * 3600.0, tuple(range(seed, seed + 3)))
    print(f"\nemulated day of {lasts_s / 60:g} minutes, {len(seeds)} seeds; first token within {WORDS.ttft:g} s, then")
    print(
        f"{WORDS.tpot * 1000:g} ms for each, of {WORDS.percentile:g} %; {MEAN_RATE:g} requests a second in the mean\n"
    )
    print("| size by | late, % | GPU-seconds | of the oracle's |")
    print("|---|---|---|---|")
    best = fmean(held(least_sizes(asks_of(one, lasts_s), lasts_s), START_S) for one in seeds)
    found = {}
    for name in (BY_TOKENS, BY_REQUESTS, *OTHERS):
        runs = [served(name, one, lasts_s) for one in seeds]
        bad, gpu_s = fmean(map(bad_part, runs)), fmean(one.gpu_s for one in runs)
        found[name] = bad, gpu_s
        print(f"| {name} | {bad:.3%} | {gpu_s:.0f} | {gpu_s / best:.2f} |", flush=True)
    print(f"| all arrivals known | | {best:.0f} | 1 |\n", flush=True)
    bad, gpu_s = found[BY_TOKENS]
    return {
        "day.late_part": Aim(value=round(bad, 5), aim=0.001),
        "day.gpu_s_of_oracle": Aim(value=round(gpu_s / best, 3), aim=1.3),
        "day.late_of_requests_alone": Aim(value=round(bad / max(found[BY_REQUESTS][0], 1e-9), 3), aim=1.0),
    }
