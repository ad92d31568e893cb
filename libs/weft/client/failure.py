"""The rank that failed first of a failed job, and the last lines of its log."""

import asyncio

from msgspec import Struct

from weft.client.client import Client
from weft.client.errors import Refused, Unreachable
from weft.client.job_failed import JobFailed
from weft.client.terminal import cleaned
from weft.domain.failure import timeout_in
from weft.domain.job import CauseCode, JobState
from weft.messages.http import JobView

LINES_MAX = 8
_TAIL_BYTES = 4096
_SECONDS_MAX = 2.0
_NEVER_RAN = frozenset(
    {
        CauseCode.START_FAILED,
        CauseCode.CANNOT_START,
        CauseCode.OBJECT_STORE,
        CauseCode.PORT_TAKEN,
        CauseCode.START_TIMEOUT,
    }
)


class LastWords(Struct, frozen=True, kw_only=True):
    """The last lines of a failed rank. `missing`: why there are none, if they could not be read."""

    rank: int
    lines: tuple[str, ...] = ()
    missing: str = ""


def timeout_of(words: LastWords | None) -> str:
    """The time-out of NCCL or torch that the last lines of a rank show; empty if they show none."""
    return timeout_in(words.lines if words is not None else ())


def failed_rank(job: JobView) -> int | None:
    """The rank that failed first; None if the job did not fail, or no rank is known to have failed."""
    if job.state is not JobState.FAILED or job.ended_for is None:
        return None
    rank = job.ended_for.numbers.get("rank")
    if rank is not None:
        return int(rank)
    return 0 if job.replicas == 1 and job.ended_for.code not in _NEVER_RAN else None


async def last_words(client: Client, job: JobView) -> LastWords | None:
    """The last lines of the failed rank, if its node answers soon; None if no rank is known to have failed."""
    rank = failed_rank(job)
    if rank is None or job.ended_for is None or job.ended_for.code in _NEVER_RAN:
        return None
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            found = await client.read_log(job.id, rank=rank, tail=_TAIL_BYTES)
    except Refused as error:
        return LastWords(rank=rank, missing=error.reason)
    except (Unreachable, TimeoutError):
        return LastWords(rank=rank, missing="the node that has its log does not answer")
    return LastWords(rank=rank, lines=_last_lines(found))


async def failure(client: Client, job: JobView) -> JobFailed:
    """The error of a job that did not succeed, with the last lines of the rank that failed first."""
    words = await last_words(client, job)
    return JobFailed(
        job.id,
        job.name,
        state=job.state,
        cause=job.ended_for,
        rank=failed_rank(job),
        status=job.exit_code,
        lines=words.lines if words is not None else (),
    )


def _last_lines(text: bytes) -> tuple[str, ...]:
    """Whole lines: the first of a tail may begin in the middle."""
    lines = cleaned(text).rstrip("\n").split("\n")
    whole = lines[1:] if len(text) >= _TAIL_BYTES and len(lines) > 1 else lines
    return tuple(line for line in whole[-LINES_MAX:] if line.strip())
