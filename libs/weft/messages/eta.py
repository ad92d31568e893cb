"""When a job starts or ends, as a range with its basis; and what would let it start sooner."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

Seconds = Annotated[float, Meta(description="Seconds since 1970-01-01 UTC.")]


class Basis(StrEnum):
    """What an estimate rests on most."""

    LIMITS = "limits"  # the time limits of the jobs in the way
    LEARNT = "learnt"  # how long jobs like these lasted
    PROGRESS = "progress"  # the steps that they report, and their pace
    ROOM = "room"  # there is room already
    UNKNOWN = "unknown"


class EtaOf(StrEnum):
    """What an estimate tells the time of."""

    START = "start"
    END = "end"


class TrackRecord(Struct, frozen=True, kw_only=True):
    """The number of earlier estimates of this kind that can be checked now, and of those that came true."""

    estimates: int
    inside: int


class Estimate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Between `earliest` and `latest` in four of five cases, if both are known; by the sure bound `latest` alone if the
    basis is limits. None: nobody can tell. Whatever is known is in order, and none of it is past."""

    of: EtaOf
    basis: Basis
    sentence: str
    earliest: Seconds | None = None
    likely: Seconds | None = None
    latest: Seconds | None = None
    record: TrackRecord | None = None


class Helps(StrEnum):
    """What would let a waiting job start sooner."""

    FEWER_GPUS = "fewer_gpus"
    ANOTHER_MODEL = "another_model"
    SPANNING = "spanning"
    LESS_MEMORY = "less_memory"
    PRIORITY = "priority"
    RESUME_NODE = "resume_node"


class Sooner(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change, tried out on the real state. `change`: what to change, such as `{"gpus": 2}`; `eta`: with it."""

    what: Helps
    sentence: str
    change: dict[str, str | float] = {}
    eta: Estimate | None = None
