"""The numbers of elastic jobs in runs side by side, as rows of text. Pure."""

from collections.abc import Sequence
from statistics import fmean

from weft.simulator.outcome import Outcome
from weft.simulator.report.compared import Contender, same_jobs, significant
from weft.simulator.sized import size_metrics, speed_ups

HEADER = (
    "run",
    "held, 5 h",
    "held, 24 h",
    "unfairness, 5 h",
    "unfairness, 24 h",
    "changes of size",
    "adjusted per event",
    "overhead %",
    "speed-up",
)
MEANING = (
    "Held: the sum over GPUs, cores and memory of the part that jobs hold, from the first arrival on. Unfairness: the"
    " sum over the jobs present of the distance between their dominant share and their fair one. Adjusted per event:"
    " running jobs that got another size or place, over arrivals and ends. Overhead: time without progress over time"
    " with it. Speed-up: the JCT of the first run over that of this one, in the mean over the jobs."
)


def is_elastic(outcome: Outcome) -> bool:
    return bool(outcome.spells) and any(
        job.elastic is not None and job.elastic.least < job.elastic.most for job in outcome.jobs
    )


def size_rows(runs: Sequence[Contender]) -> list[list[str]]:
    """A row for each run with elastic jobs; all are compared with the first run."""
    return [_row(run, runs[0]) for run in runs if is_elastic(run.outcome)]


def _row(run: Contender, first: Contender) -> list[str]:
    found = size_metrics(run.outcome)
    comparable = run is not first and same_jobs(first.outcome, run.outcome)
    ups = speed_ups(first.outcome, run.outcome).values() if comparable else ()
    return [
        run.label,
        significant(found.utilisation_first),
        significant(found.utilisation_day),
        significant(found.unfairness_first),
        significant(found.unfairness_day),
        f"{found.resizes:,}",
        significant(found.adjusted_per_event),
        significant(found.overhead_mean * 100),
        f"×{significant(fmean(ups))}" if ups else "",
    ]
