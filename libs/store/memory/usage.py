"""When the GPUs that jobs hold, or wait for, changed: folded from their events."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from libs.domain.cluster import Capacity
from libs.domain.job import Job, JobEvent, Placement, beside
from libs.domain.shares import WHOLE, gpus_held, thousandths
from libs.messages.events import Event, JobEventData
from libs.messages.series import GpuChanges
from libs.store.rows import as_micros

WAITS = frozenset({JobEvent.SUBMITTED, JobEvent.REQUEUED})
ENDS = frozenset({JobEvent.SUCCEEDED, JobEvent.FAILED, JobEvent.CANCELLED})
TELLS_ALL = WAITS | ENDS | {JobEvent.PLACED, JobEvent.TUNED, JobEvent.RESIZED, JobEvent.RESTARTED}
"""The events that say by themselves what the job holds and waits for from then on."""


class _NodeData(Struct):
    capacity: Capacity | None = None


def job_changes(
    jobs: Iterable[Job], stories: Mapping[str, Sequence[Event]], *, begins: int, ends: int
) -> list[GpuChanges]:
    """The changes of these jobs, by what and tenant; times in microseconds since 1970."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for job in jobs:
        had = {"held": 0, "wanted": 0, "waiting": 0}
        for at, has in _story(job, stories[job.id], begins):
            if at < ends:
                for what, amount in has.items():
                    _add(found.setdefault((what, job.tenant), {}), at, amount - had[what])
                had = has
    made = (_changes(what, tenant, by) for (what, tenant), by in sorted(found.items()))
    return [changes for changes in made if changes.at]


def node_changes(told: Iterable[Event], *, begins: int, ends: int) -> GpuChanges:
    """The changes of what all nodes have."""
    found: dict[int, int] = {}
    last: dict[str, int] = {}
    had: dict[str, int] = {}
    for event in sorted(told, key=lambda event: (event.subject_id, event.version)):
        at = last[event.subject_id] = max(begins, as_micros(event.at), last.get(event.subject_id, begins))
        capacity = msgspec.json.decode(event.data, type=_NodeData).capacity
        gpus = 0 if event.event == "removed" or capacity is None else len(capacity.gpus) * WHOLE
        if at < ends:
            _add(found, at, gpus - had.get(event.subject_id, 0))
            had[event.subject_id] = gpus
    return _changes("there", "", found)


def _story(job: Job, story: Sequence[Event], begins: int) -> Iterable[tuple[int, dict[str, int]]]:
    """From when on the job held and waited for how many thousandths of GPUs, and whether it waited."""
    last = max((event.version for event in story if as_micros(event.at) < begins), default=0)
    known = [event.version for event in story if event.version <= last and event.event in TELLS_ALL]
    at, place = begins, None
    for event in story:
        if event.version < max(known, default=0) or event.event not in TELLS_ALL | {JobEvent.STOPPING}:
            continue
        at = max(at, begins if event.version <= last else as_micros(event.at))
        data = msgspec.json.decode(event.data, type=JobEventData)
        place = data.placement or place
        waits = event.event in WAITS
        held = 0 if waits or event.event in ENDS or place is None else _held(place, data.next_placement)
        yield at, {"held": held, "wanted": wanted_of(job) if waits else 0, "waiting": WHOLE if waits else 0}


def _held(place: Placement, following: Placement | None) -> int:
    allocations = place.allocations if following is None else (*place.allocations, *beside(place, following))
    return thousandths(sum(gpus_held(allocation.gpus, allocation.share) for allocation in allocations))


def wanted_of(job: Job) -> int:
    """The thousandths of GPUs that it waits for while it waits."""
    each = {
        name: role.gpus * WHOLE if role.share is None else role.share.held.request
        for name, role in job.spec.roles.items()
    }
    return sum(count * each[name] for name, count in job.wanted.items())


def _add(changes: dict[int, int], at: int, by: int) -> None:
    changes[at] = changes.get(at, 0) + by


def _changes(what: str, tenant: str, by: Mapping[int, int]) -> GpuChanges:
    kept = sorted((at, change) for at, change in by.items() if change)
    return GpuChanges(what=what, tenant=tenant, at=tuple(at for at, _ in kept), by=tuple(change for _, change in kept))
