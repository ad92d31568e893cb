"""The jobs that an exception of a decision concerns: those named in the innermost frame of the deciding code."""

from collections.abc import Iterator, Sequence
from traceback import walk_tb
from types import FrameType

from msgspec import Struct

from weft.domain.job import Job


def frames_of(error: BaseException) -> list[FrameType]:
    """The frames in which the exception was on its way, the outermost first."""
    return [frame for frame, _ in walk_tb(error.__traceback__)]


def jobs_blamed(error: BaseException, deciding: tuple[str, ...]) -> Sequence[str]:
    """The ids of the jobs that the exception may be about, the likeliest first; empty if it is about no certain job.

    They are read from the local variables of one frame: the innermost that names a job, in a module whose name begins
    with one of `deciding`. The variable that was set last is the likeliest. A lack of memory is about no job.
    """
    if isinstance(error, MemoryError):
        return ()
    for frame in reversed(frames_of(error)):
        if frame.f_globals.get("__name__", "").startswith(deciding):
            found = dict.fromkeys(job_id for name, value in frame.f_locals.items() for job_id in _named(name, value))
            if found:
                return tuple(reversed(found))
    return ()


def in_words(error: BaseException) -> str:
    """Its kind and its place, without its own words: these may be another tenant's. The log has them."""
    frame = frames_of(error)[-1]
    return f"{type(error).__name__} in {frame.f_globals['__name__'].rpartition('.')[2]}.{frame.f_code.co_name}"


def _named(name: str, value: object) -> Iterator[str]:
    """The job that a variable is, has, or names."""
    if isinstance(value, str) and name == "job_id":
        yield value
    elif isinstance(value, Job):
        yield value.id
    elif isinstance(value, Struct) or hasattr(value, "__dict__"):
        has = value.__struct_fields__ if isinstance(value, Struct) else vars(value)
        if "job" in has and isinstance(value.job, Job):  # type: ignore[attr-defined]
            yield value.job.id  # type: ignore[attr-defined]
        elif "job_id" in has and isinstance(value.job_id, str):  # type: ignore[attr-defined]
            yield value.job_id  # type: ignore[attr-defined]
