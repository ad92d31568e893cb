"""Stretches: the GPUs that a job held in each of its epochs, and how the epoch ended, from its event history."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from weft.domain.job import HELD_FOR, Allocation, CauseCode, JobEvent, Placement, beside
from weft.domain.shares import WHOLE
from weft.messages.accounts import JobFacts
from weft.messages.events import Event

Held = tuple[tuple[str, int, int], ...]
"""Each GPU once: its node, its index there, and how many thousandths of it. Nothing in it is looked at by the garbage
collector, which would hold up everything else for as long as it looks at a month of jobs."""

_WAITS = frozenset({JobEvent.SUBMITTED, JobEvent.REQUEUED})
_ENDS = frozenset({JobEvent.SUCCEEDED, JobEvent.FAILED, JobEvent.CANCELLED})
_HOLDS = frozenset({JobEvent.PLACED, JobEvent.TUNED, JobEvent.RESIZED, JobEvent.RESTARTED, JobEvent.STOPPING})
TELLS = tuple(sorted(event.value for event in _WAITS | _ENDS | _HOLDS | {JobEvent.WAITING}))
"""The events of a job that say what it holds and waits for."""
_NO_GPU_WOULD_HELP = frozenset(
    {
        CauseCode.NO_NODES,
        CauseCode.TOO_BIG,
        CauseCode.BACKOFF,
        CauseCode.STILL_RUNS,
        CauseCode.STORE_RESTORED,
        CauseCode.NOT_STORED,
        CauseCode.OTHER,  # codes of later versions: it is unknown if a GPU would help
        CauseCode.OVER_QUOTA,
        *HELD_FOR,
    }
)


class Part(Struct, frozen=True, gc=False):
    """The begin and end (microseconds since 1970) of the time in which a job held these thousandths of GPUs."""

    begins: int
    ends: int
    held: Held


class EpochStretch(Struct, kw_only=True, gc=False):
    """One epoch of a job as far as it is in the window. `began`: when the epoch had its first GPUs, perhaps before it.

    `event` and `code`: how it ended; empty while it runs. `asked`: it was asked to stop, and had its grace. `told`: the
    newest numbers that the job reported; `saved`: the step from which it began, 0 if unknown.
    """

    job: JobFacts
    epoch: int
    began: int
    parts: tuple[Part, ...] = ()
    event: str = ""
    code: str = ""
    asked: bool = False
    told: dict[str, float] = {}
    saved: float = 0.0

    @property
    def held(self) -> int:
        return sum(amount(part) for part in self.parts)

    @property
    def begins(self) -> int:
        return self.parts[0].begins if self.parts else self.began

    @property
    def ends(self) -> int:
        return self.parts[-1].ends if self.parts else self.began


class Wait(Struct, frozen=True, gc=False):
    """The begin and end of a wait of a job that could have run, and the thousandths of GPUs that it waited for."""

    tenant: str
    pool: str
    begins: int
    ends: int
    wanted: int


class _Cause(Struct, frozen=True, gc=False):
    code: CauseCode = CauseCode.OTHER


class _Data(Struct, frozen=True, gc=False):
    """The data of an event that accounting needs."""

    epoch: int = 0
    cause: _Cause = _Cause()
    placement: Placement | None = None
    next_placement: Placement | None = None
    progress: dict[str, float] | None = None
    not_before: float | None = None


_DATA = msgspec.json.Decoder(_Data)


def amount(part: Part) -> int:
    return sum(by for _, _, by in part.held) * (part.ends - part.begins)


def folded(job: JobFacts, story: Sequence[Event], *, begins: int, ends: int) -> tuple[list[EpochStretch], list[Wait]]:
    """The GPUs that the job held, epoch by epoch, and the times in which it could have run, from `begins` until
    `ends`."""
    fold = _Fold(job, begins, ends)
    for event in story:
        fold.take(event)
    return fold.over()


class _Fold:
    def __init__(self, job: JobFacts, begins: int, ends: int) -> None:
        self._job = job
        self._begins, self._ends = begins, ends
        self._at = 0
        self._stretches: list[EpochStretch] = []
        self._waits: list[Wait] = []
        self._now: EpochStretch | None = None
        self._parts: list[Part] = []  # of it
        self._held: Held = ()
        self._place: Placement | None = None
        self._waiting = False  # and could run
        self._from = 0  # not before this time
        self._saved = 0.0

    def take(self, event: Event) -> None:
        """A time before the last one counts as the last one."""
        at = max(self._at, round(event.at * 1e6))
        self._until(at)
        kind, data = JobEvent(event.event), _DATA.decode(event.data)
        self._place = data.placement or self._place
        if kind in _WAITS or kind in _ENDS:
            self._end(kind, data)
            self._waiting = kind in _WAITS
            self._from = round((data.not_before or 0.0) * 1e6)
        elif kind is JobEvent.WAITING:
            self._waiting = data.cause.code not in _NO_GPU_WOULD_HELP
        elif kind in _HOLDS and self._place is not None:
            self._waiting = False
            self._holds(kind, data, at)

    def over(self) -> tuple[list[EpochStretch], list[Wait]]:
        self._until(self._ends)
        self._close()
        return [one for one in self._stretches if one.parts], self._waits

    def _until(self, at: int) -> None:
        """Add the state since the last event."""
        begins, ends = max(self._at, self._begins), min(at, self._ends)
        self._at = at
        if self._now is not None and self._held and begins < ends:
            self._parts.append(Part(begins, ends, self._held))
        if self._waiting and self._job.wanted and max(begins, self._from) < ends:
            job, since = self._job, max(begins, self._from)
            self._waits.append(Wait(job.tenant, job.pool, since, ends, job.wanted))

    def _holds(self, kind: JobEvent, data: _Data, at: int) -> None:
        if kind is JobEvent.RESTARTED:
            self._end(kind, data)
        if self._now is None:
            self._now = EpochStretch(job=self._job, epoch=data.epoch, began=at, saved=self._saved)
        assert self._place is not None, "a job holds what it was placed on"
        self._held = _by_gpu(self._place.allocations)
        if kind is JobEvent.STOPPING:
            self._now.asked = True
            self._now.told = data.progress or self._now.told
            if data.next_placement is not None:
                more = beside(self._place, data.next_placement)
                self._held = _by_gpu((*self._place.allocations, *more))

    def _end(self, kind: JobEvent, data: _Data) -> None:
        told = data.progress
        if self._now is not None:
            told = self._now.told = told or self._now.told
            self._now.event, self._now.code = kind.value, data.cause.code.value
        self._saved = (told or {}).get("checkpoint", 0.0)
        self._close()

    def _close(self) -> None:
        if self._now is not None:
            self._now.parts = tuple(self._parts)
            self._stretches.append(self._now)
        self._now, self._parts, self._held = None, [], ()


def _by_gpu(allocations: Iterable[Allocation]) -> Held:
    found: dict[tuple[str, int], int] = {}
    for allocation in allocations:
        part = WHOLE if allocation.share is None else allocation.share.request
        for index in allocation.gpus:
            gpu = (allocation.node_id, index)
            found[gpu] = found.get(gpu, 0) + part
    return tuple((node_id, index, part) for (node_id, index), part in found.items())
