"""NATS and Postgres for a machine that has none: found in wheels or installed, started and stopped for a home."""

from weft.servers.embedded import (
    Servers,
    down,
    erase,
    only_postgres,
    postgres_folder,
    reload_users,
    status,
    temporary,
    up,
)
from weft.servers.errors import ServerFailedError, ServerMissingError, ServersBusyError, ServersError
from weft.servers.state import ServersState, ServerState

__all__ = [
    "ServerFailedError",
    "ServerMissingError",
    "ServerState",
    "Servers",
    "ServersBusyError",
    "ServersError",
    "ServersState",
    "down",
    "erase",
    "only_postgres",
    "postgres_folder",
    "reload_users",
    "status",
    "temporary",
    "up",
]
