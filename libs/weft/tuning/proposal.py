"""A change that could be made to a job, and the result of earlier ones."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from weft.domain.job import Allocation, CauseCode, Job
from weft.messages.asks import RankTuning
from weft.tuning.cause import Stood
from weft.tuning.envelope import Bounds
from weft.tuning.window import JobWindow, Window

GAIN_MIN = 0.05  # predicted: a little more than must be measured for a change to be kept
WORTH_MIN = 0.4  # predicted gain over cost: also a little more than must be measured
TRIES = {"split": 2, "up": 3, "less": 1, "one-more": 1}
"""How often a direction is tried without success, each time half as far, until it counts as exhausted."""


class Free(Struct, frozen=True, kw_only=True):
    """Free capacity of a node: cores, bytes."""

    cpus: float
    memory: int


class Failed(Struct, frozen=True, kw_only=True):
    """How often a direction failed, and the speed and envelope (`cpus`) of the last try: if either changes, it is tried
    again. With a speed of 0 it never is.
    """

    times: int
    speed: float
    cpus: float


class Headroom(Struct, frozen=True, kw_only=True):
    """The conditions for an additional replica of a job, if one may be requested.

    `roles`: those of which one more fits and is left to the tuner; `cost_s`: seconds without progress until the job
    has another size; `left_s`: seconds that the job still runs, as far as is known; `exponents`: how its speed grew
    with the replicas of a role, as measured.
    """

    roles: frozenset[str]
    cost_s: float = 0.0
    left_s: float = 0.0
    exponents: Mapping[str, float] = {}


class Case(Struct, frozen=True, kw_only=True):
    """One job that may be changed: its verdict, its windows (newest last), what is free by node, and its bounds."""

    job: Job
    stood: Stood
    recent: Sequence[JobWindow]
    free: Mapping[str, Free]
    bounds: Bounds
    tried: Mapping[str, int] = {}  # by direction: tries without success
    speed_known: bool = True  # and steady: otherwise no change can be verified
    room: Headroom | None = None  # for a further replica; None: none may be asked for now

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        assert self.job.placement is not None
        return self.job.placement.allocations

    @property
    def windows(self) -> dict[int, Window]:
        return {window.rank: window for window in self.recent[-1].ranks}

    def open(self, direction: str) -> bool:
        """True if the direction is not exhausted."""
        kind = direction.split(":")[1]
        return self.tried.get(direction, 0) < TRIES[kind]

    def damped(self, direction: str) -> float:
        return 0.5 ** self.tried.get(direction, 0)


class Proposal(Struct, frozen=True, kw_only=True):
    """`gain`: by which part the job is predicted to be faster; `cost`: by which part its resources would grow.

    `before` and `after` name the same ranks and the same kinds of limits. A proposal of another size has the replicas
    of one role in `size_before` and `size_after`; its ranks first have the limits `after`, so that the replica that
    joins has its cores, and once it is there those in `sharing`, where it has the rank -1.
    """

    direction: str  # `<resource>:<split, up or less>:<role>`, or `replicas:one-more:<role>`
    code: CauseCode
    before: tuple[RankTuning, ...] = ()
    after: tuple[RankTuning, ...] = ()
    gain: float
    cost: float
    sentence: str
    numbers: dict[str, float] = {}
    size_before: dict[str, int] = {}
    size_after: dict[str, int] = {}
    sharing: tuple[RankTuning, ...] = ()

    @property
    def resizes(self) -> bool:
        return bool(self.size_after)
