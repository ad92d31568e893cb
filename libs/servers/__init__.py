"""NATS and Postgres for a machine that has none: found in wheels or installed, started and stopped for a home."""

from libs.servers.embedded import Servers, down, erase, postgres_folder, reload_users, status, temporary, up
from libs.servers.errors import ServerFailedError, ServerMissingError, ServersBusyError, ServersError
from libs.servers.state import ServersState, ServerState

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
    "postgres_folder",
    "reload_users",
    "status",
    "temporary",
    "up",
]
