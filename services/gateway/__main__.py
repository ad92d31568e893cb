"""Wires the gateway to its servers: `python -m services.gateway`."""

import asyncio
import os
import secrets
import string
import sys
import time
from typing import Annotated

from msgspec import Meta, Struct

from libs.bus import BusError
from libs.bus.nats import NatsBus
from libs.domain.tenants import Allowance
from libs.messages.http import LIMIT_MAX, PRIORITY_MAX
from libs.service import Connections, SettingsError, load, main
from libs.service.config import read_secret
from libs.service.keys import ServerCertificate, nats_keys, pg_keys
from libs.store import StoreUnavailableError
from libs.store.postgres import PostgresStore
from services.gateway import service
from services.gateway.gateway import GatewayLimits
from services.gateway.thinking.rates import Rate

Pace = Annotated[float, Meta(ge=0)]
Bound = Annotated[int, Meta(ge=0, le=LIMIT_MAX)]
Burst = Annotated[float, Meta(ge=1)]
CHARACTERS = string.ascii_lowercase + string.digits


class GatewayConfig(Struct, frozen=True, kw_only=True):
    """GATEWAY_… in the environment, and WEFT_… for what all services share.

    `reads` (GET) and `changes` (all else) are counted for each tenant, `refusals` (unknown tokens) for each address;
    0 a second: no bound. `tenant_…` are the limits of a tenant for which no administrator has set others. With
    `tls_cert_file` and `tls_key_file` it serves HTTPS alone.
    """

    host: str = "127.0.0.1"
    port: int = 8470
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    admin_token_file: str = ""
    scorer_token_file: str = ""
    default_pool: str = "default"
    volumes_allowed: tuple[str, ...] = ()
    pg_connections: int = 8
    connections_max: int = 4096
    connections_per_address_max: Annotated[int, Meta(ge=1)] = 1024
    reads_at_once_max: Annotated[int, Meta(ge=1)] = 2
    streams_max: int = 1024
    streams_per_tenant_max: int = 256
    reads_per_second: Pace = 2000.0
    reads_burst: Burst = 10_000.0
    changes_per_second: Pace = 2000.0
    changes_burst: Burst = 10_000.0
    refusals_per_second: Pace = 5.0
    refusals_burst: Burst = 50.0
    tokens_kept_days: Annotated[float, Meta(ge=0)] = 90.0  # after they were revoked or expired; 0: for ever
    tenant_jobs_open_max: Bound = 20_000
    tenant_spec_bytes_max: Bound = 64 << 20
    tenant_priority_max: Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] = 100
    tenant_may_be_unpreemptible: bool = False
    tls_cert_file: str = ""
    tls_key_file: str = ""
    connections: Connections = Connections()

    def __post_init__(self) -> None:
        relative = [path for path in self.volumes_allowed if not path.startswith("/")]
        if relative:
            raise ValueError(f"GATEWAY_VOLUMES_ALLOWED: {relative[0]} is not an absolute path")
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ValueError("GATEWAY_TLS_CERT_FILE and GATEWAY_TLS_KEY_FILE: a certificate and its key come together")


def characters(count: int) -> str:
    return "".join(secrets.choice(CHARACTERS) for _ in range(count))


async def run(stop: asyncio.Event) -> None:
    config = load(GatewayConfig, prefix="GATEWAY_", environ=os.environ)
    servers = config.connections
    if not servers.pg_dsn:
        raise SettingsError("WEFT_PG_DSN is not set")
    certificate = ServerCertificate(config.tls_cert_file, config.tls_key_file) if config.tls_cert_file else None
    async with (
        PostgresStore.connect(servers.pg_dsn, **pg_keys(servers), connections=config.pg_connections) as store,
        NatsBus.connect(servers.nats_url, name="gateway", **nats_keys(servers), on_closed=stop.set) as bus,
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
            scorer_token=read_secret(config.scorer_token_file),
            admin_host=config.admin_host,
            admin_port=config.admin_port,
            limits=GatewayLimits(
                connections_max=config.connections_max,
                connections_per_address_max=config.connections_per_address_max,
                reads_at_once_max=config.reads_at_once_max,
                streams_max=config.streams_max,
                streams_per_tenant_max=config.streams_per_tenant_max,
                reads=Rate(config.reads_per_second, config.reads_burst),
                changes=Rate(config.changes_per_second, config.changes_burst),
                refusals=Rate(config.refusals_per_second, config.refusals_burst),
                tenants=Allowance(
                    jobs_open_max=config.tenant_jobs_open_max,
                    spec_bytes_max=config.tenant_spec_bytes_max,
                    priority_max=config.tenant_priority_max,
                    may_be_unpreemptible=config.tenant_may_be_unpreemptible,
                ),
            ),
            tokens_kept_seconds=config.tokens_kept_days * 86400.0 or None,
            certificate=certificate,
        )


if __name__ == "__main__":
    sys.exit(main("gateway", run, environment_errors=(BusError, StoreUnavailableError, OSError)))
