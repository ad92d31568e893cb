"""The connection by which a message came."""

from msgspec import Struct


class Connection(Struct, frozen=True, kw_only=True):
    """One connection to one server. A later connection never equals it. Messages sent over one arrive in order."""

    server: str
    number: int
