"""NATS and Postgres on a machine that has none: found in wheels or installed, started for one home, kept, stopped."""

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
