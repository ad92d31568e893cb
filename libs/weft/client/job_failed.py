"""The error of a job that did not succeed."""

from weft.domain.job import Cause, JobState


class JobFailed(Exception):  # noqa: N818 -- `except weft.JobFailed` names the outcome
    """The job ended and did not succeed: it failed, or somebody cancelled it.

    `job`: its id. `state`: `failed` or `cancelled`. `verdict`: the sentence that says why; `cause`: the same for
    programs. `rank`: the rank that failed first, if one is known; `status`: its exit status; `lines`: the last lines
    that it wrote to stdout and stderr, at most 8, without control characters. `error` and `traceback`: of a function
    that raised, its type and message, and what Python prints.
    """

    def __init__(
        self,
        job: str,
        name: str,
        *,
        state: JobState,
        cause: Cause | None = None,
        rank: int | None = None,
        status: int | None = None,
        lines: tuple[str, ...] = (),
        error: str = "",
        traceback: str = "",
    ) -> None:
        self.job = job
        self.name = name
        self.state = state
        self.cause = cause
        self.verdict = cause.sentence if cause is not None else ""
        self.rank = rank
        self.status = status
        self.lines = lines
        self.error = error
        self.traceback = traceback
        why = f": {error or self.verdict}" if error or self.verdict else ""
        tail = "".join(f"\n  {line}" for line in lines)
        last = f"\nthe last lines of rank {rank}:{tail}" if lines else ""
        where = f"\n{traceback.rstrip()}" if traceback else ""
        super().__init__(f"{name} ({job}) {state}{why}{last}{where}")
