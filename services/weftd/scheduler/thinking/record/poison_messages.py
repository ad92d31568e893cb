"""Mistakes of the core: an exception of a decision is held against the job, ask or node that the decision was about.

A leader that ended with such an exception would end again with each load, and so would every leader after it. Instead
it loads its pool again, which is enough where only its cluster state was wrong. What a second exception within
`REMEMBERED_SECONDS` is about is kept from the core: a job is stopped or fails, an ask is dropped, the reports of a node
are refused. Nothing of this is in the history: a record begins with what the leader loads after it.
"""

from msgspec import Struct

from weft.domain.blame import frames_of, in_words, jobs_blamed
from weft.domain.job import STEPS, Cause, CauseCode, Job, JobChange, JobEvent, JobState, Step, changed
from weft.messages.asks import Ask
from weft.messages.nodes import NodeReported
from weftd.scheduler.thinking.core import Scheduler

TOLERATED = 1  # exceptions about one job, ask or node after which the pool is only loaded anew
REMEMBERED_SECONDS = 600.0  # for which an exception counts
REFUSED_SECONDS = 60.0  # for which the reports of a node are refused before the next one is tried
THINKING = ("weftd.scheduler.thinking.", "weft.planning.")  # the modules that decide

Blamed = tuple[type[Job] | type[Ask] | type[NodeReported], str | int]
"""A job, an ask or a node, by its id."""


class _Charge(Struct, kw_only=True):
    """The exceptions that were about one job, ask or node: how many, the last of them, and when that was."""

    count: int
    sentence: str
    at: float

    @property
    def holds(self) -> bool:
        return self.count > TOLERATED


class PoisonMessages:
    def __init__(self) -> None:
        self._charges: dict[Blamed, _Charge] = {}

    def blame(self, error: Exception, now: float) -> str:
        """Take in an exception of a cycle; returns what it was about, in words.

        Empty: it is no mistake of the core about a certain job, ask or node.
        """
        for blamed in [blamed for blamed, charge in self._charges.items() if now - charge.at > REMEMBERED_SECONDS]:
            del self._charges[blamed]
        suspects = _suspects(error)
        if not suspects:
            return ""
        sentence = in_words(error)
        for blamed in suspects:
            count = self._charges[blamed].count if blamed in self._charges else 0
            self._charges[blamed] = _Charge(count=count + 1, sentence=sentence, at=now)
        # Only one is kept from the core, though an exception may be about several: a job, and one that gives way to it.
        worst = max(suspects, key=lambda blamed: self._charges[blamed].count)
        for blamed in suspects:
            if blamed != worst:
                self._charges[blamed].count = min(self._charges[blamed].count, TOLERATED)
        kind, name = worst
        return f"{kind.__name__} {name}: {sentence}"

    def of_job(self, job_id: str) -> str | None:
        """Why the core must not decide about the job again as it is; None if it may."""
        charge = self._charges.get((Job, job_id))
        return charge.sentence if charge is not None and charge.holds else None

    def forgive(self, job_id: str) -> None:
        """The job was set aside: one more exception about it, as it is now, has it set aside once more."""
        self._charges[Job, job_id].count = TOLERATED

    def drops(self, ask: Ask) -> bool:
        charge = self._charges.get((Ask, ask.id))
        return charge is not None and charge.holds

    def refuses(self, report: NodeReported, now: float) -> str:
        """Why the report is refused; empty if it is not."""
        charge = self._charges.get((NodeReported, report.node_id))
        if charge is None or not charge.holds or now - charge.at > REFUSED_SECONDS:
            return ""
        return f"the scheduler failed each time it read a report of this node ({charge.sentence})"


def set_aside(job: Job, sentence: str, now: float) -> JobChange:
    """The change of an open job that the core fails to decide about: it stops, or fails where it stops already or holds
    nothing. Runs that are left then are orphans, which keep their GPUs until they end."""
    stops = job.state.holding and job.state is not JobState.STOPPING
    event = JobEvent.STOPPING if stops else JobEvent.FAILED
    cause = Cause(
        code=CauseCode.DECISION_FAILED,
        sentence=f"the scheduler failed each time it decided about this job ({sentence}); other jobs go on",
    )
    step = Step(
        job_id=job.id,
        version=job.version,
        event=event,
        to=STEPS[job.state, event],
        at=now,
        cause=cause,
        epoch=job.epoch,
    )
    return changed(job, step)


def _suspects(error: Exception) -> list[Blamed]:
    """The ask or the node that caused the exception; where neither did, the jobs that may have, the likeliest first.

    An ask or a node caused it if the scheduler was handling that ask, or a report of that node.
    """
    for frame in [] if isinstance(error, MemoryError) else frames_of(error):
        if frame.f_code is Scheduler.ask.__code__:
            return [(Ask, frame.f_locals["ask"].id)]
        if frame.f_code is Scheduler.report.__code__:
            return [(NodeReported, frame.f_locals["report"].node_id)]
    return [(Job, job_id) for job_id in jobs_blamed(error, THINKING)]
