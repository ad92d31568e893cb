"""Conversations of several turns, emulated: where each turn goes, what of its prompt is cached there, and its TTFT."""

from collections.abc import Iterator
from heapq import heappop, heappush
from random import Random

from tests.bench.figures import Aim, quantile
from tests.bench.models.day import WORDS
from tests.bench.models.virtual import PROMPT, TURNS, USUAL, Virtual
from tests.support.emulated_engine import Ask

REPLICAS, CACHE_TOKENS = 8, 120_000
SESSIONS_PER_S, TURNS_MEAN, THINKS_S = 3.0, 6.0, 20.0
SYSTEM, SAYS, ANSWERS = 600, (50, 400), (50, 350)  # tokens


def asks_of(seed: int, lasts_s: float) -> Iterator[Ask]:
    """Each turn's prompt is all that was said before, behind what all conversations begin with."""
    random = Random(seed)
    due: list[tuple[float, int, int]] = []  # when, session, tokens of its conversation
    opens, session, number = random.expovariate(SESSIONS_PER_S), 0, 0
    while True:
        if opens < lasts_s and (not due or opens < due[0][0]):
            at, of, told = opens, session, SYSTEM
            session += 1
            opens += random.expovariate(SESSIONS_PER_S)
        elif due:
            at, of, told = heappop(due)
        else:
            return
        if at >= lasts_s:
            return
        tokens_in, tokens_out = told + random.randint(*SAYS), random.randint(*ANSWERS)
        yield Ask(number=number, at=at, tokens_in=tokens_in, tokens_out=tokens_out, session=of, shared=SYSTEM)
        number += 1
        if random.random() < 1.0 - 1.0 / TURNS_MEAN:
            heappush(due, (at + random.expovariate(1.0 / THINKS_S) + 3.0, of, tokens_in + tokens_out))


def measure(seed: int, *, quick: bool) -> dict[str, Aim]:
    lasts_s = 300.0 if quick else 1800.0
    print(f"\nemulated conversations, {lasts_s / 60:g} minutes, {REPLICAS} replicas\n")
    print("| replica by | tokens of prompts cached | TTFT p50 | p99 | late |")
    print("|---|---|---|---|---|")
    hits, p99 = {}, {}
    for choice in (TURNS, USUAL, PROMPT):
        made = Virtual(WORDS, replicas=REPLICAS, choice=choice, cache_tokens=CACHE_TOKENS)
        ended = made.run(asks_of(seed, lasts_s), lasts_s).ended
        hits[choice] = sum(one.cached for one in ended) / sum(one.tokens_in for one in ended)
        firsts = [one.first - one.at for one in ended]
        p99[choice] = quantile(firsts, 0.99)
        late = sum(map(WORDS.is_late, ended)) / len(ended)
        p50 = quantile(firsts, 0.5)
        print(f"| {choice} | {hits[choice]:.1%} | {p50 * 1e3:.0f} ms | {p99[choice] * 1e3:.0f} ms | {late:.2%} |")
    print(flush=True)
    return {
        "prefix.hits_of_round_robin": Aim(value=round(hits[PROMPT] / hits[TURNS], 3), aim=1.5, at_least=True),
        "prefix.ttft_p99_of_round_robin": Aim(value=round(p99[PROMPT] / p99[TURNS], 3), aim=1.0),
    }
