"""The HTTP interface's view of how the cluster itself is: its services, its servers, and what somebody should do."""

from enum import StrEnum

from msgspec import Struct

from weft.messages.http import Bytes


class Grave(StrEnum):
    """`problem`: something does not work. `warning`: it works, and will not for ever."""

    PROBLEM = "problem"
    WARNING = "warning"


class StatusFinding(Struct, frozen=True, kw_only=True):
    """`about`: the service, server or node; `act`: what to do."""

    grave: Grave
    about: str
    sentence: str
    act: str


class ServiceView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process of a service. `silent_seconds`: since its last report, of which there is one in five seconds;
    `stuck`: its loops that stand still; `leads`: of a scheduler, the pools that it leads."""

    service: str
    instance: str
    version: str
    up_seconds: float
    silent_seconds: float
    ready: bool
    stuck: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()


class DatabaseView(Struct, frozen=True, kw_only=True):
    """`ran`: the migrations that ran, in order. `asks`: submissions and asks that wait for a scheduler; `unsent`:
    events that are not published yet; each is counted up to 10,000."""

    bytes: Bytes
    connections: int
    connections_max: int
    version: str
    ran: tuple[str, ...]
    asks: int
    unsent: int


class StatusView(Struct, frozen=True, kw_only=True):
    """`version`: the version of the gateway that answers. `nats`: its connection to NATS stands. `database`: None if
    Postgres does not answer. `findings`: the problems first; empty: all is well."""

    version: str
    nats: bool
    database: DatabaseView | None
    services: tuple[ServiceView, ...]
    nodes: int
    nodes_ready: int
    gpus: int
    findings: tuple[StatusFinding, ...]
