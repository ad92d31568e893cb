"""Wires the scheduler: `python -m services.scheduler`."""

import asyncio
import os
import secrets
import socket
import sys
from typing import Annotated

import msgspec
from msgspec import Meta

from libs.bus import BusError
from libs.bus.nats import NatsBus
from libs.planning.policy import Policy
from libs.service.clock import steady
from libs.service.config import Connections, load
from libs.service.keys import nats_keys, pg_keys
from libs.service.start import main
from libs.store import StoreUnavailableError
from libs.store.postgres import PostgresStore
from services.scheduler import service
from services.scheduler.thinking.core import Settings
from services.scheduler.thinking.history import HistoryRetention
from services.scheduler.thinking.moving import MoveRules
from services.scheduler.thinking.picture import POLICY

DAY = 86400.0


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """SCHEDULER_… settings, in seconds where they are times. Orders, placements and backfills by their names."""

    connections: Connections = Connections()
    pool: str = "default"
    order: str = POLICY.order
    placement: str = POLICY.placement
    backfill: str = POLICY.backfill
    locality_penalty: Annotated[float, Meta(ge=1)] = 1.7
    rack_penalty: Annotated[float, Meta(ge=1)] = 1.0
    lease_seconds: float = 150.0
    start_seconds: float = 900.0
    stop_seconds: float = 300.0
    settle_seconds: float = 10.0
    patience_seconds: float = 300.0
    moves: bool = True
    moves_max: Annotated[int, Meta(ge=0)] = 4
    moves_every_seconds: Annotated[float, Meta(gt=0)] = 10.0
    move_margin: Annotated[float, Meta(ge=1)] = 2.0
    move_cost_seconds: Annotated[float, Meta(ge=0)] = 60.0
    leader_seconds: float = 6.0
    holds_seconds: Annotated[float, Meta(ge=0)] = 3600.0  # while the store is away; 0: nodes are left to their fences
    history_seconds: float = 7 * 86400.0
    history_bytes: int = 1 << 30
    jobs_kept_days: Annotated[float, Meta(ge=0)] = 90.0  # after their end; 0: for ever
    nodes_kept_days: Annotated[float, Meta(ge=0)] = 30.0  # after they were lost; 0: for ever
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"

    @property
    def policy(self) -> Policy:
        return Policy(self.order, self.placement, self.backfill)

    def __post_init__(self) -> None:
        try:
            _ = self.policy
        except ValueError as error:
            field, _, reason = str(error).partition(": ")
            raise ValueError(f"SCHEDULER_{field.upper()}: {reason}") from error
        if 0 < self.jobs_kept_days * DAY < self.history_seconds:
            raise ValueError(
                f"jobs_kept_days {self.jobs_kept_days:g} must not be less than history_seconds"
                f" {self.history_seconds:g}: a history refers to the specifications of its jobs"
            )
        if self.stop_seconds <= self.lease_seconds:
            raise ValueError(
                f"stop_seconds {self.stop_seconds:g} must be more than lease_seconds {self.lease_seconds:g}: a silent"
                " node is lost first, and then nothing of its runs is waited for"
            )


async def run(stop: asyncio.Event) -> None:
    config = load(SchedulerConfig, prefix="SCHEDULER_", environ=os.environ)
    to = config.connections
    async with (
        NatsBus.connect(to.nats_url, name="scheduler", **nats_keys(to)) as bus,
        PostgresStore.connect(to.pg_dsn, **pg_keys(to)) as store,
    ):
        await service.run(
            bus=bus,
            store=store,
            stop=stop,
            pool=config.pool,
            holder=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
            clock=steady(),
            settings=Settings(
                policy=config.policy,
                locality_penalty=config.locality_penalty,
                rack_penalty=config.rack_penalty,
                lease_seconds=config.lease_seconds,
                start_seconds=config.start_seconds,
                stop_seconds=config.stop_seconds,
                settle_seconds=config.settle_seconds,
                patience_seconds=config.patience_seconds,
                moves=MoveRules(
                    on=config.moves,
                    margin=config.move_margin,
                    at_once_max=config.moves_max,
                    cost_seconds=config.move_cost_seconds,
                    every_seconds=config.moves_every_seconds,
                ),
                nodes_kept_seconds=config.nodes_kept_days * DAY or None,
            ),
            leader_seconds=config.leader_seconds,
            holds_seconds=config.holds_seconds,
            retention=HistoryRetention(seconds=config.history_seconds, bytes=config.history_bytes),
            jobs_kept_seconds=config.jobs_kept_days * DAY or None,
            admin_port=config.admin_port,
            admin_host=config.admin_host,
        )


if __name__ == "__main__":
    sys.exit(main("scheduler", run, environment_errors=(BusError, StoreUnavailableError, OSError)))
