"""Limits of concurrent jobs: elements of arrays with a limit, and singletons of one name.

An element keeps its slot until it has ended, also while it waits for a retry.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush

from weft.domain.job import Cause, CauseCode, Job, JobState

Key = tuple[str, str]
"""A tenant and a name."""


class _Array:
    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.turns: set[str] = set()
        self.waiting: list[tuple[bool, int, str]] = []  # a heap: those that ran before first, then by index
        self.known: set[str] = set()  # what the heap has, and still waits


class ArrayThrottle:
    """The elements of arrays with `at_once`."""

    def __init__(self) -> None:
        self._arrays: dict[str, _Array] = {}

    def see(self, job: Job) -> Iterator[str]:
        """Update a job; yield the elements that may get a slot next."""
        element = job.spec.element
        if element is None or element.at_once is None:
            return
        array = self._arrays.setdefault(element.array, _Array(element.at_once))
        if job.state.holding:
            array.turns.add(job.id)
            array.known.discard(job.id)
        elif job.state.final:
            array.turns.discard(job.id)
            array.known.discard(job.id)
            if not array.turns and not array.known:
                del self._arrays[element.array]
        yield from self._next(array)

    def _next(self, array: _Array) -> list[str]:
        found: list[str] = []
        while array.waiting and len(array.turns) + len(found) < array.at_once:
            *_, job_id = heappop(array.waiting)
            if job_id in array.known:
                array.known.discard(job_id)
                found.append(job_id)
        return found

    def take(self, job: Job) -> Cause | None:
        """Give a waiting job a slot, or return why it gets none."""
        element = job.spec.element
        if element is None or element.at_once is None:
            return None
        # An array is forgotten when an element ends while none has a cycle or waits for one: all wait for another job.
        array = self._arrays.setdefault(element.array, _Array(element.at_once))
        if job.id in array.turns:
            return None
        if len(array.turns) < array.at_once:
            array.turns.add(job.id)
            array.known.discard(job.id)
            return None
        if job.id not in array.known:
            array.known.add(job.id)
            heappush(array.waiting, (job.epoch == 0, element.index, job.id))
        sentence = f"its array {element.array} runs {element.at_once} elements at once, and as many hold resources now"
        return Cause(code=CauseCode.ARRAY_FULL, sentence=sentence, by=element.array)


class _Name:
    """Open jobs of one name of one tenant. All elements of an array are one group, every other job is one by itself."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, tuple[int, bool, bool]]] = {}  # the seq, and whether it holds, and waits
        self.first: dict[str, int] = {}  # of each group, the lowest seq that it ever had
        self.in_order: list[tuple[int, str]] = []


class SingletonThrottle:
    """A singleton starts once every earlier job of its name is over, and while none of another group holds anything."""

    def __init__(self) -> None:
        self._names: dict[Key, _Name] = {}

    def see(self, job: Job) -> Iterator[str]:
        """Update a job; yield the singletons that may start next."""
        key, group_id = _key(job), _group(job)
        name = self._names.setdefault(key, _Name())
        group = name.groups.get(group_id)
        before = group.get(job.id) if group else None
        now = None if job.state.final else (job.seq, job.state.holding, _waits(job))
        if before == now:
            if not name.groups:
                del self._names[key]
            return
        if now is None:
            assert group is not None
            del group[job.id]
            if not group:
                del name.groups[group_id]
                place = (name.first.pop(group_id), group_id)
                del name.in_order[bisect_left(name.in_order, place)]
        else:
            if group is None:
                group = name.groups[group_id] = {}
                name.first[group_id] = job.seq
                insort(name.in_order, (job.seq, group_id))
            group[job.id] = now
        if not name.groups:
            del self._names[key]
            return
        released = before is not None and (now is None or (before[1] and not now[1]))
        first = name.in_order[0][1]
        if released and first != group_id:
            yield from (job_id for job_id, (_, _, waits) in name.groups[first].items() if waits)

    def cause(self, job: Job) -> Cause | None:
        """Why a waiting job has no cycle yet."""
        if not job.spec.singleton:
            return None
        name, group_id = self._names[_key(job)], _group(job)
        first = name.in_order[0][1]
        if first == group_id and not _holds(name, but=group_id):
            return None
        sentence = "it is a singleton, and an earlier job of the same name is not over"
        return Cause(code=CauseCode.SINGLETON, sentence=sentence)


def _holds(name: _Name, *, but: str) -> bool:
    """Return True if a job of another group holds resources."""
    others = (group for group_id, group in name.groups.items() if group_id != but)
    return any(holds for group in others for _, holds, _ in group.values())


def _waits(job: Job) -> bool:
    return job.state is JobState.QUEUED and job.spec.singleton


def _key(job: Job) -> Key:
    return (job.tenant, job.spec.element.name if job.spec.element is not None else job.name)


def _group(job: Job) -> str:
    return job.spec.element.array if job.spec.element is not None else job.id
