"""The scheduler's settings: SCHEDULER_… in the environment. Times are in seconds unless the name has another unit."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from weft.health.lemons import JOBS_KEPT, LemonRules
from weft.health.state import HealthTimes
from weft.messages.bounds import Token
from weft.planning.moves import MoveRules
from weft.planning.policy import Policy
from weft.planning.preemption.minimum_run import SECONDS as MINIMUM_RUN_SECONDS
from weft.planning.quota.decay import HALF_LIFE_SECONDS
from weft.planning.reserving import PATIENCE_SECONDS
from weft.service.config import Connections
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.record.history import HistoryRetention

MOVES, POLICY = MoveRules(), Policy()
TIMES, LEMONS = HealthTimes(), LemonRules()
DAY = 86400.0
POOLS_MAX = 256
SPARES_MAX = 64


Seconds = Annotated[float, Meta(ge=1, le=365 * DAY)]


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a GPU or a node is sick, and for how long: see `HealthTimes` and `LemonRules`."""

    health_clean_seconds: Seconds = TIMES.clean_seconds
    health_suspect_seconds: Seconds = TIMES.suspect_seconds
    health_probation_seconds: Seconds = TIMES.probation_seconds
    health_longest_seconds: Seconds = TIMES.longest_seconds
    health_offences_seconds: Seconds = TIMES.offences_seconds
    lemon_factor: Annotated[float, Meta(ge=1.5, le=100)] = LEMONS.factor
    lemon_threshold: Annotated[float, Meta(ge=1, le=1000)] = LEMONS.threshold
    lemon_rate_least: Annotated[float, Meta(ge=1e-6, le=0.1)] = LEMONS.rate_least
    lemon_jobs_least: Annotated[int, Meta(ge=1, le=JOBS_KEPT)] = LEMONS.jobs_least
    lemon_nodes_least: Annotated[int, Meta(ge=2)] = LEMONS.nodes_least
    lemon_window_seconds: Seconds = LEMONS.window_seconds

    @property
    def times(self) -> HealthTimes:
        return HealthTimes(
            clean_seconds=self.health_clean_seconds,
            suspect_seconds=self.health_suspect_seconds,
            probation_seconds=self.health_probation_seconds,
            longest_seconds=self.health_longest_seconds,
            offences_seconds=self.health_offences_seconds,
        )

    @property
    def lemons(self) -> LemonRules:
        return LemonRules(
            factor=self.lemon_factor,
            threshold=self.lemon_threshold,
            rate_least=self.lemon_rate_least,
            jobs_least=self.lemon_jobs_least,
            nodes_least=self.lemon_nodes_least,
            window_seconds=self.lemon_window_seconds,
        )


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Orders, placements and backfills are given by their names.

    A recorded history holds `core`. Its names must stay as in old histories, so it is made from these settings
    instead of being a part of them.
    """

    connections: Connections = Connections()
    pool: str = "default"
    pools: tuple[Token, ...] = ()  # shared with other schedulers; none: `pool` alone
    order: str = POLICY.order
    placement: str = POLICY.placement
    backfill: str = POLICY.backfill
    locality_penalty: Annotated[float, Meta(ge=1)] = 1.7
    rack_penalty: Annotated[float, Meta(ge=1)] = 1.0
    lease_seconds: float = 150.0
    start_seconds: float = 900.0
    stop_seconds: float = 300.0
    settle_seconds: float = 10.0
    patience_seconds: float = PATIENCE_SECONDS
    moves: bool = True
    moves_max: Annotated[int, Meta(ge=0)] = 4
    moves_every_seconds: Annotated[float, Meta(gt=0)] = 10.0
    move_margin: Annotated[float, Meta(ge=1)] = MOVES.margin
    move_cost_seconds: Annotated[float, Meta(ge=0)] = MOVES.cost_seconds
    leader_seconds: float = 6.0
    even_seconds: Annotated[float, Meta(ge=0)] = 60.0  # until a pool goes over to one that leads fewer; 0: never
    holds_seconds: Annotated[float, Meta(ge=0)] = 3600.0  # while the store is away; 0: nodes are left to their fences
    history_seconds: float = 7 * DAY
    history_bytes: int = 1 << 30
    jobs_kept_days: Annotated[float, Meta(ge=0)] = 90.0  # after their end; 0: for ever
    nodes_kept_days: Annotated[float, Meta(ge=0)] = 30.0  # after they were lost; 0: for ever
    fair_half_life_seconds: Annotated[float, Meta(ge=60, le=365 * DAY)] = HALF_LIFE_SECONDS
    preemption_after_seconds: Annotated[float, Meta(ge=0, le=3600)] = MINIMUM_RUN_SECONDS  # 0: at any time
    quotas: bool = True  # false: quotas that are set are not obeyed
    quota_runtime_seconds: Annotated[float, Meta(ge=0, le=30 * DAY)] = 0.0
    nats_replicas: Literal[1, 3, 5] = 1  # servers that each hold the stream of events: 3 in a cluster of three
    spares: Annotated[int, Meta(ge=0, le=SPARES_MAX)] = 0  # nodes of each kind kept for gangs whose hardware failed
    preflight: bool = False  # the GPUs of gangs are checked before they start, once a day each
    shares_strict: bool = False  # shares of GPUs are given only on nodes that hold jobs to them
    health: HealthSettings = HealthSettings()
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        try:
            _ = self.policy
        except ValueError as error:
            field, _, reason = str(error).partition(": ")
            raise ValueError(f"SCHEDULER_{field.upper()}: {reason}") from error
        if len(self.pools) > POOLS_MAX or len(set(self.pools)) < len(self.pools):
            raise ValueError(f"SCHEDULER_POOLS: each pool once, and {POOLS_MAX} at most")
        if 0 < self.jobs_kept_days * DAY < self.history_seconds:
            raise ValueError(
                f"jobs_kept_days {self.jobs_kept_days:g} must not be less than history_seconds"
                f" {self.history_seconds:g}: a history refers to the specifications of its jobs"
            )
        if self.stop_seconds <= self.lease_seconds:
            raise ValueError(
                f"stop_seconds {self.stop_seconds:g} must be more than lease_seconds {self.lease_seconds:g}: a silent"
                " node must be lost before the wait for its runs ends"
            )

    @property
    def all_pools(self) -> tuple[str, ...]:
        """The pools that this scheduler may lead."""
        return self.pools or (self.pool,)

    @property
    def policy(self) -> Policy:
        return Policy(self.order, self.placement, self.backfill)

    @property
    def core(self) -> Settings:
        return Settings(
            policy=self.policy,
            locality_penalty=self.locality_penalty,
            rack_penalty=self.rack_penalty,
            lease_seconds=self.lease_seconds,
            start_seconds=self.start_seconds,
            stop_seconds=self.stop_seconds,
            settle_seconds=self.settle_seconds,
            patience_seconds=self.patience_seconds,
            moves=MoveRules(
                on=self.moves,
                margin=self.move_margin,
                at_once_max=self.moves_max,
                cost_seconds=self.move_cost_seconds,
                every_seconds=self.moves_every_seconds,
            ),
            nodes_kept_seconds=self.nodes_kept_days * DAY or None,
            half_life_seconds=self.fair_half_life_seconds,
            preemption_after_seconds=self.preemption_after_seconds,
            quota_runtime_seconds=self.quota_runtime_seconds,
            spares=self.spares,
            preflight=self.preflight,
            shares_strict=self.shares_strict,
            health=self.health.times,
            lemons=self.health.lemons,
        )

    @property
    def retention(self) -> HistoryRetention:
        return HistoryRetention(seconds=self.history_seconds, bytes=self.history_bytes)
