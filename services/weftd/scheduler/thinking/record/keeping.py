"""The state of a core as bytes and back, so that a history can begin in the middle of a leader's term.

Code is stored by its name: the order and the placement that the policy names. A job is stored by its id: the reader
of the bytes supplies the jobs, so that the bytes hold no specification.
"""

import pickle
from collections.abc import Iterable
from functools import cache
from io import BytesIO
from types import FunctionType
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from weft.domain.job import Job
from weft.planning.capacity import Placer
from weft.planning.order import Order
from weft.planning.policy import PLACEMENTS, Policy
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.state.openjobs import OpenJobs

S = TypeVar("S", bound=Struct)

_OURS = ("weft.domain.", "weft.messages.", "weft.planning.", "weft.variability.", "weftd.scheduler.")
_BROKEN = (EOFError, ImportError, AttributeError, LookupError, TypeError, ValueError)
_PLACERS = {Policy(placement=name).placing.placer: name for name in reversed(PLACEMENTS)}
_encode = msgspec.msgpack.Encoder().encode


def pickled(core: Scheduler) -> bytes:
    """The core as bytes. `unpickled` needs the jobs of its cluster state as they are now."""
    into = BytesIO()
    _Pickler(into, pickle.HIGHEST_PROTOCOL).dump(core)
    return into.getvalue()


def unpickled(core: bytes, jobs: Iterable[Job] = ()) -> Scheduler:
    """The core from its bytes. Raises pickle.UnpicklingError if they are no core, or of an incompatible version."""
    try:
        made = _Unpickler(core, jobs).load()
    except _BROKEN as error:
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error
    if not isinstance(made, Scheduler):
        raise pickle.UnpicklingError("it is no scheduler's core")
    _compare(made, Scheduler(pool=made.pool, settings=made.settings))
    return made


def _compare(made: object, fresh: object) -> None:
    """Raises pickle.UnpicklingError if `made` has other attributes than a core of this version."""
    has, demand = vars(made), vars(fresh)
    if has.keys() != demand.keys():
        other = ", ".join(sorted(has.keys() ^ demand.keys()))
        raise pickle.UnpicklingError(f"it is of another version, whose {type(fresh).__name__} has other parts: {other}")
    for name, part in demand.items():
        if hasattr(part, "__dict__") and type(has[name]) is type(part):
            _compare(has[name], part)


class _Pickler(pickle.Pickler):
    """Writes a Struct as MessagePack: twenty times as fast, and there are very many."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Order):
            return (order_of, (obj.name,))
        if isinstance(obj, OpenJobs):
            return (open_jobs_of, ())
        if isinstance(obj, Job):
            return (job_of, (obj.id,))
        if isinstance(obj, Struct):
            return (struct_of, (type(obj), _encode(obj)))
        if isinstance(obj, FunctionType) and obj in _PLACERS:
            return (placer_of, (_PLACERS[obj],))
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Makes objects of Weft's own classes only: a history may come from an untrusted source."""

    def __init__(self, core: bytes, jobs: Iterable[Job]) -> None:
        super().__init__(BytesIO(core))
        self._jobs = OpenJobs({job.id: job for job in jobs})

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.".startswith(_OURS) and "." not in name:
            found = super().find_class(module, name)
            if found is job_of:
                return self._jobs.__getitem__
            if found is open_jobs_of:
                return lambda: self._jobs
            if found in (struct_of, order_of, placer_of) or (isinstance(found, type) and found.__module__ == module):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is nothing that a core is made of")


def struct_of(kind: type[S], encoded: bytes) -> S:
    made: S = _decoder(kind).decode(encoded)
    return made


def job_of(job_id: str) -> Job:
    """The stand-in for a job in the bytes; the unpickler has the job."""
    raise LookupError(job_id)


def open_jobs_of() -> OpenJobs:
    """The stand-in for all jobs in the bytes; the unpickler has the jobs."""
    raise LookupError("open jobs")


def order_of(name: str) -> Order:
    return Policy(order=name).ordering


def placer_of(name: str) -> Placer:
    return Policy(placement=name).placing.placer


@cache
def _decoder(kind: type[S]) -> msgspec.msgpack.Decoder[S]:
    return msgspec.msgpack.Decoder(kind)
