"""Estimates for `explain`: when the job starts or ends, and what would help."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from weft.domain.job import CauseCode, Job, JobState
from weft.domain.text import plural
from weft.messages.eta import Basis, Estimate, EtaOf, Sooner
from weft.messages.http.explanation import Explanation
from weft.planning.eta.ends import Steps, left_of, reports_steps
from weft.planning.eta.learnt import Lasting
from weft.planning.eta.record import HIGH, LOW, MIDDLE, Range, TrackRecords
from weft.planning.eta.sooner import ANYBODY, Advised, sooner
from weft.planning.eta.spread import TimeSpread
from weft.planning.eta.starts import Foreseen, PoolToCome, estimate_of
from weft.planning.jobs import ends_at


def to_come(
    job: Job, pool: Callable[[], PoolToCome], advised: Advised = ANYBODY
) -> tuple[Foreseen | None, tuple[Sooner, ...]]:
    """The estimated start of a waiting job or end of a running one; None for an ended job. `pool` is called only if
    it is needed."""
    if job.state.final:
        return None, ()
    known = pool()
    if job.state is JobState.QUEUED:
        eta = known.start_of(job)
        return eta, sooner(known, job, eta, advised)
    return end_of(job, known.durations, now=known.now, steps=known.steps, records=known.records), ()


def as_it_fits(eta: Estimate | None, ahead: int) -> tuple[CauseCode, str]:
    """Code and sentence of a waiting job that fits, in agreement with its estimate."""
    if (eta is None and not ahead) or (eta is not None and eta.basis is Basis.ROOM and eta.likely is not None):
        return CauseCode.FITS, "it fits, and is placed in the next cycle"
    if not ahead:
        return (
            CauseCode.HELD_BACK,
            "it would fit now, but the free capacity may be reserved for a job that is served before it",
        )
    served = f"{plural(ahead, 'job')} {'is' if ahead == 1 else 'are'}"
    return CauseCode.HELD_BACK, f"it would fit now, but {served} served before it"


def agreed(found: Explanation, eta: Estimate | None) -> Explanation:
    """The explanation of a waiting job, whose sentence agrees with its estimate."""
    code, sentence = as_it_fits(eta, found.ahead)
    known = {as_it_fits(None, found.ahead)[1]}
    if found.state is not JobState.QUEUED or found.sentence.partition(";")[0] not in known or found.held_back_for:
        return found
    rest = found.sentence.removeprefix(found.sentence.partition(";")[0])
    return structs.replace(found, code=str(code), sentence=sentence + rest)


def ends_of(ids: Sequence[str], pool: PoolToCome) -> dict[str, Estimate]:
    """Estimated ends of jobs that hold resources of a waiting job, as in their own explanations."""
    jobs = {job.id: job for job in pool.holding}
    return {
        job_id: end_of(jobs[job_id], pool.durations, now=pool.now, steps=pool.steps, records=pool.records).estimate
        for job_id in ids
        if job_id in jobs
    }


def end_of(
    job: Job,
    durations: Lasting,
    *,
    now: float,
    steps: Mapping[str, Steps] | None = None,
    records: TrackRecords[Any] | None = None,
) -> Foreseen:
    """The estimated end of a job that holds resources."""
    if job.spec.is_service and job.spec.time_limit_seconds is None:
        sentence = "nobody can tell when it ends: a service runs until it is cancelled"
        return Foreseen(Estimate(of=EtaOf.END, basis=Basis.UNKNOWN, sentence=sentence))
    left = left_of(job, durations, now=now, heard=steps)
    if not left.known:
        reported = "too few steps so far" if reports_steps(job, now=now, heard=steps) else "no steps"
        why = f"it has no time limit, reports {reported}, and nothing like it has ended yet"
        return Foreseen(Estimate(of=EtaOf.END, basis=Basis.UNKNOWN, sentence=f"nobody can tell when it ends: {why}"))
    return foreseen_end(left, now=now, records=records or TrackRecords(), bound=ends_at(job))


def foreseen_end(left: TimeSpread, *, now: float, records: TrackRecords[Any], bound: float | None = None) -> Foreseen:
    """The estimated end from the remaining time, corrected by earlier estimates. `bound`: the time at which its limit
    ends it."""
    raw = Range(left.at(LOW), left.at(MIDDLE), left.at(HIGH))
    track = records.of(EtaOf.END, left.basis)
    told = raw if left.basis is Basis.LIMITS else track.corrected(raw, now=now)
    if bound is not None:  # a limit is certain, whatever the track record
        most = max(0.0, bound - now)
        told = Range(min(told.low, most), min(told.likely, most), min(told.high, most))
    eta = estimate_of(told, left.basis, of=EtaOf.END, now=now, weak=left.weak, record=track.record)
    return Foreseen(eta, None if left.basis is Basis.LIMITS else raw, told)
