"""What could be changed about a job, and what came of it before."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from libs.domain.job import Allocation, CauseCode, Job
from libs.messages.asks import RankTuning
from libs.tuning.cause import Stood
from libs.tuning.envelope import Bounds, grained
from libs.tuning.window import JobWindow, Window

GAIN_MIN = 0.05  # predicted: a little more than what must come true for a change to be kept
WORTH_MIN = 0.4  # predicted gain over cost, likewise
TRIES = {"split": 2, "up": 3, "less": 1}
"""How often a direction is tried in vain, each time half as far, until it counts as exhausted."""


class Free(Struct, frozen=True, kw_only=True):
    """What a node has left: cores, bytes."""

    cpus: float
    memory: int


def that_fits(
    wanted: Sequence[RankTuning], allocations: Sequence[Allocation], free: Mapping[str, Free]
) -> tuple[RankTuning, ...]:
    """Of the CPU and memory that ranks are to have more, as much as their nodes have left: on one node all the same
    part of it. What they are to have less of, or to send, is as it was wanted."""
    held = {allocation.rank: allocation for allocation in allocations}
    parts = {
        node: _part(
            [(limit, held[limit.rank]) for limit in wanted if held[limit.rank].node_id == node],
            free.get(node, Free(cpus=0.0, memory=0)),
        )
        for node in {held[limit.rank].node_id for limit in wanted}
    }
    fitting: list[RankTuning] = []
    for limit in wanted:
        has = held[limit.rank]
        of_cpus, of_memory = parts[has.node_id]
        cpus, memory = limit.cpus, limit.memory
        if cpus is not None and cpus > has.cpus and of_cpus < 1.0:
            cpus = max(has.cpus, grained(has.cpus + of_cpus * (cpus - has.cpus)))
        if memory is not None and memory > has.memory and of_memory < 1.0:
            memory = has.memory + int(of_memory * (memory - has.memory))
        fitting.append(structs.replace(limit, cpus=cpus, memory=memory))
    return tuple(fitting)


def _part(pairs: Sequence[tuple[RankTuning, Allocation]], left: Free) -> tuple[float, float]:
    """Of the CPU and of the memory that ranks of one node are to have more: with what others there are to give."""
    cpus = [limit.cpus - has.cpus for limit, has in pairs if limit.cpus is not None]
    memory = [limit.memory - has.memory for limit, has in pairs if limit.memory is not None]
    return _met(cpus, left.cpus), _met(memory, left.memory)


def _met(more: Sequence[float], left: float) -> float:
    needed = sum(one for one in more if one > 0)
    given = -sum(one for one in more if one < 0)
    return 1.0 if needed <= left + given else (left + given) / needed


class Failed(Struct, frozen=True, kw_only=True):
    """Tried so often in vain, last at that speed and with that envelope: another of either makes it worth a try.

    A speed of 0: nothing does.
    """

    times: int
    speed: float
    cpus: float


class Case(Struct, frozen=True, kw_only=True):
    """One job that may be changed: what stands, what was measured (newest last), what is free and allowed."""

    job: Job
    stood: Stood
    recent: Sequence[JobWindow]
    free: Mapping[str, Free]
    bounds: Bounds
    tried: Mapping[str, int] = {}  # by direction: in vain
    speed_known: bool = True  # and steady: else nothing can be verified

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        assert self.job.placement is not None
        return self.job.placement.allocations

    @property
    def windows(self) -> dict[int, Window]:
        return {window.rank: window for window in self.recent[-1].ranks}

    def open(self, direction: str) -> bool:
        """Is it not exhausted?"""
        kind = direction.split(":")[1]
        return self.tried.get(direction, 0) < TRIES[kind]

    def damped(self, direction: str) -> float:
        return 0.5 ** self.tried.get(direction, 0)


class Proposal(Struct, frozen=True, kw_only=True):
    """`gain`: by which part the job is predicted to be faster; `cost`: by which part what it has would grow.

    `before` and `after` name the same ranks and say the same kinds of limits.
    """

    direction: str  # `<resource>:<split, up or less>:<role>`
    code: CauseCode
    before: tuple[RankTuning, ...]
    after: tuple[RankTuning, ...]
    gain: float
    cost: float
    sentence: str
    numbers: dict[str, float] = {}
