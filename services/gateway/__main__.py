"""Wires the gateway to its servers: `python -m services.gateway`."""

import asyncio
import os
import secrets
import string
import sys
import time

from msgspec import Struct

from libs.bus.nats import NatsBus
from libs.service import Connections, SettingsError, load, main
from libs.service.config import read_secret
from libs.store.postgres import PostgresStore
from services.gateway import service
from services.gateway.gateway import Limits

CHARACTERS = string.ascii_lowercase + string.digits


class Config(Struct, frozen=True, kw_only=True):
    """GATEWAY_… in the environment, and WEFT_… for what all services share."""

    host: str = "127.0.0.1"
    port: int = 8470
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    admin_token_file: str = ""
    default_pool: str = "default"
    volumes_allowed: tuple[str, ...] = ()
    pg_connections: int = 8
    connections_max: int = 4096
    streams_max: int = 1024
    streams_per_tenant_max: int = 256
    connections: Connections = Connections()

    def __post_init__(self) -> None:
        relative = [path for path in self.volumes_allowed if not path.startswith("/")]
        if relative:
            raise ValueError(f"GATEWAY_VOLUMES_ALLOWED: {relative[0]} is not an absolute path")


def characters(count: int) -> str:
    return "".join(secrets.choice(CHARACTERS) for _ in range(count))


async def run(stop: asyncio.Event) -> None:
    config = load(Config, prefix="GATEWAY_", environ=os.environ)
    servers = config.connections
    if not servers.pg_dsn:
        raise SettingsError("WEFT_PG_DSN is not set")
    async with (
        PostgresStore.connect(
            servers.pg_dsn, password=servers.pg_password() or None, connections=config.pg_connections
        ) as store,
        NatsBus.connect(
            servers.nats_url,
            name="gateway",
            user=servers.nats_user,
            password=servers.nats_password(),
            on_closed=stop.set,
        ) as bus,
    ):
        await service.run(
            bus=bus,
            store=store,
            stop=stop,
            now=time.time,
            clock=time.monotonic,
            characters=characters,
            host=config.host,
            port=config.port,
            default_pool=config.default_pool,
            volumes_allowed=config.volumes_allowed,
            admin_token=read_secret(config.admin_token_file),
            admin_host=config.admin_host,
            admin_port=config.admin_port,
            limits=Limits(
                connections_max=config.connections_max,
                streams_max=config.streams_max,
                streams_per_tenant_max=config.streams_per_tenant_max,
            ),
        )


if __name__ == "__main__":
    sys.exit(main("gateway", run))
