"""The settings of the scheduler's core."""

from msgspec import Struct

from weft.health.lemons import LemonRules
from weft.health.state import HealthTimes
from weft.planning.moves import MoveRules
from weft.planning.policy import Policy
from weft.planning.quota.decay import HALF_LIFE_SECONDS
from weft.planning.reserving import PATIENCE_SECONDS


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of the core. Times are in seconds."""

    policy: Policy = Policy()
    locality_penalty: float = 1.7  # a gang that is not all on one node takes this many times as long
    rack_penalty: float = 1.0  # this many times as long again if it is not all in one rack
    lease_seconds: float = 150.0  # a node silent for this long is lost, and its jobs are requeued
    start_seconds: float = 900.0  # from placed to running, image pull included
    stop_seconds: float = 300.0  # from stopping to gone, besides the job's grace
    settle_seconds: float = 10.0  # how long a new leader waits for its nodes to report before it places anything
    patience_seconds: float = PATIENCE_SECONDS  # nodes may be kept for a job that waited this long
    steps_max: int = 500  # decided in one tick; the rest in the next
    moves: MoveRules = MoveRules()
    nodes_kept_seconds: float | None = None  # a node that is lost for this long is removed; None: never
    half_life_seconds: float = HALF_LIFE_SECONDS  # of what tenants used, in the order fair
    quota_runtime_seconds: float = 0.0  # a job that borrows keeps its GPUs for so long at least
    preemption_after_seconds: float = 0.0  # a job runs for so long at least before it is pre-empted
    health: HealthTimes = HealthTimes()
    lemons: LemonRules = LemonRules()
    spares: int = 0  # nodes of each kind that are kept for gangs whose hardware failed
    preflight: bool = False  # the GPUs of gangs are checked before they start, once a day each
    shares_strict: bool = False  # shares of GPUs are given only where jobs are held to them
