"""Lemon nodes: nodes on which runs fail more often than on the other nodes, by no fault of their jobs.

A CUSUM for each node counts every run that is placed there: the log of how much likelier what happened is at `factor`
times the fleet's rate of failures than at the fleet's rate (E. S. Page, Biometrika 41, 1954; for single events that
happen or not: M. R. Reynolds and Z. G. Stoumbos, Journal of Quality Technology 31, 1999). After an alarm it begins at
half of its threshold, so that a node that comes back and still fails is found sooner (J. M. Lucas and R. B. Crosier,
Technometrics 24, 1982).

With the fleet at 1 % and a node at 5 %, a failure adds 1.65 and a run that does not fail takes 0.04 away: there are 20
runs to a failure, so that each failure adds 0.8, and the threshold of 6 is reached by the seventh.
"""

from collections.abc import Iterable, Mapping
from math import log

from msgspec import Struct, structs

from weft.domain.health import Tally
from weft.health.catalogue import FAILS_OFTEN, LEMON

JOBS_KEPT = 8
RUNS_KEPT = 10_000  # then half of a tally is forgotten, so that the rate of the fleet follows the last weeks
PRIOR_FAILURES, PRIOR_RUNS = 1.0, 100.0  # the counts of a fleet before its first failure
LEMON_RATE_MAX = 0.95
RATE_MAX = 0.15  # if more runs of the fleet fail than this, it is no node that is to blame


class LemonRules(Struct, frozen=True, kw_only=True):
    """`factor`: a node fails this many times as often as the others; `threshold`: the score of a lemon; half of it
    makes a suspect. `jobs_least`: the number of jobs that must have failed there: no job condemns a node
    alone; `nodes_least`: a smaller fleet has nothing to compare with."""

    factor: float = 5.0
    threshold: float = 6.0
    rate_least: float = 0.005
    jobs_least: int = 3
    nodes_least: int = 3
    window_seconds: float = 7 * 86400.0  # a failure counts for so long after the one before


def fleet_rate(others: Iterable[Tally], rules: LemonRules) -> float:
    """The part of the runs that fail on the other nodes."""
    failures, runs = PRIOR_FAILURES, PRIOR_RUNS
    for each in others:
        failures, runs = failures + each.failures, runs + each.runs
    return max(rules.rate_least, failures / runs)


def began(tally: Tally, runs: int, rate: float, rules: LemonRules) -> Tally:
    """The tally after `runs` more runs were placed, none of which has failed so far."""
    if rate >= RATE_MAX:
        return structs.replace(tally, runs=tally.runs + runs)
    score = max(0.0, tally.score + runs * _of_success(rate, rules))
    return structs.replace(tally, runs=tally.runs + runs, score=score)


def failed(tally: Tally, job_id: str, rate: float, now: float, rules: LemonRules) -> Tally:
    """The tally after one of its runs failed."""
    if now - tally.at > rules.window_seconds:
        tally = structs.replace(tally, score=0.0, jobs=())
    more = 0.0 if rate >= RATE_MAX else log(_of_lemon(rate, rules) / rate) - _of_success(rate, rules)
    jobs = (*(each for each in tally.jobs if each != job_id), job_id)[-JOBS_KEPT:]
    found = structs.replace(tally, failures=tally.failures + 1, score=tally.score + more, jobs=jobs, at=now)
    if found.runs > RUNS_KEPT:
        found = structs.replace(found, runs=found.runs // 2, failures=found.failures // 2)
    return found


def signs_of(tally: Tally, nodes: int, rules: LemonRules) -> Mapping[str, float]:
    """The sign of a node in a fleet of `nodes` nodes, with its score; empty if it is as good as the others."""
    if nodes < rules.nodes_least or len(tally.jobs) < rules.jobs_least or tally.score < rules.threshold / 2:
        return {}
    return {LEMON if tally.score >= rules.threshold else FAILS_OFTEN: round(tally.score, 2)}


def after_alarm(tally: Tally, rules: LemonRules) -> Tally:
    return structs.replace(tally, score=rules.threshold / 2, jobs=())


def numbers_text(tally: Tally, rate: float, rules: LemonRules) -> str:
    """Such as `6 of 40 runs failed, the latest of 4 jobs; 1.0% elsewhere; score 6.2, and 6 makes a lemon`."""
    return (
        f"{tally.failures:,} of {tally.runs:,} runs failed, the latest of {len(tally.jobs)} jobs;"
        f" {rate:.1%} elsewhere; score {tally.score:.1f}, and {rules.threshold:g} makes a lemon"
    )


def _of_success(rate: float, rules: LemonRules) -> float:
    return log((1.0 - _of_lemon(rate, rules)) / (1.0 - rate))


def _of_lemon(rate: float, rules: LemonRules) -> float:
    return min(LEMON_RATE_MAX, rules.factor * rate)
