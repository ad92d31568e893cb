"""Wires the gateway to its servers: `python -m weftd.gateway`."""

import asyncio
import ctypes
import os
import secrets
import string
import sys
import time

from weft.bus import BusError
from weft.bus.nats import NatsBus
from weft.messages.accounts import OWN_TENANT
from weft.service import SettingsError, load, main
from weft.service.config import read_secret
from weft.service.keys import ServerCertificate, nats_keys, pg_keys
from weft.store import StoreUnavailableError
from weft.store.postgres import PostgresStore
from weftd.gateway import service
from weftd.gateway.api.tokens import ADMIN_TENANT
from weftd.gateway.settings import GatewaySettings

CHARACTERS = string.ascii_lowercase + string.digits
SWITCH_SECONDS = 0.0005
"""A thread that computes lets the event loop go on after so long, by Python's default ten times as long: what the loop
answers takes several turns of it, and would wait so long for each.
"""
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
ARENAS_MAX = 2
MAPPED_BYTES = 512 << 10


def characters(count: int) -> str:
    return "".join(secrets.choice(CHARACTERS) for _ in range(count))


async def run(stop: asyncio.Event) -> None:
    suit_threads()
    settings = load(GatewaySettings, prefix="GATEWAY_", environ=os.environ)
    servers = settings.connections
    if not servers.pg_dsn:
        raise SettingsError("WEFT_PG_DSN is not set")
    certificate = ServerCertificate(settings.tls_cert_file, settings.tls_key_file) if settings.tls_cert_file else None
    async with (
        PostgresStore.connect(servers.pg_dsn, **pg_keys(servers), connections=settings.pg_connections) as store,
        NatsBus.connect(servers.nats_url, name="gateway", **nats_keys(servers), on_closed=stop.set) as bus,
    ):
        await service.run(
            settings,
            bus=bus,
            store=store,
            stop=stop,
            now=time.time,
            clock=time.monotonic,
            characters=characters,
            tokens={
                ADMIN_TENANT: read_secret(settings.admin_token_file),
                OWN_TENANT: read_secret(settings.scorer_token_file),
            },
            mail_password=read_secret(settings.mail.mail_password_file),
            oidc_secret=read_secret(settings.oidc.oidc_client_secret_file),
            certificate=certificate,
            processor=time.thread_time,
        )


def suit_threads() -> None:
    """Shorten the turns of threads. With glibc, use few heaps for all threads and return large blocks once they are
    freed: by default each thread that reads megabytes keeps them."""
    sys.setswitchinterval(SWITCH_SECONDS)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_ARENA_MAX, ARENAS_MAX)
        libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


if __name__ == "__main__":
    sys.exit(main("gateway", run, environment_errors=(BusError, StoreUnavailableError, OSError)))
