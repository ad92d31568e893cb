"""Input and output of an autoscaler."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from weft.domain.job import Cause


class Goal(Struct, frozen=True, kw_only=True):
    """What a service promises, and between what it may be sized. `latency` in seconds, to the first byte of the answer,
    of `percentile` percent of the requests; `tpot`: seconds for each token of a stream after the first, of as many, in
    which case `latency` is to the first; `rate` per second. None: it has no objective.

    `share`: thousandths of a GPU that each replica asks for; `share_most`: its maximum. None: the replica has whole
    GPUs, or none.
    """

    least: int
    most: int
    concurrency: int
    latency: float | None = None
    tpot: float | None = None
    percentile: float = 99.0
    rate: float | None = None
    share: int | None = None
    share_most: int | None = None


class ReplicaLoad(Struct, frozen=True, kw_only=True):
    """One replica. `score`: the believed score of its GPU, 1.0 is typical, more is slower. `share`: thousandths. By its
    engine: the requests that wait there, and the part of its KV cache in use; None: it does not say."""

    rank: int
    ready: bool
    draining: bool = False
    in_flight: int = 0
    answered: int = 0  # in all
    busy_seconds: float = 0.0  # in all
    share: int | None = None
    score: float = 1.0
    borrowed: bool = False  # it has the GPU of another job
    started_at: float | None = None
    ready_at: float | None = None
    engine_waiting: int | None = None
    kv_used: float | None = None


class RequestCounts(Struct, frozen=True, kw_only=True):
    """The requests to one service at all routers together, as in `weft.messages.serving`: totals that never fall, and
    how many wait now (`queued`), the oldest since `oldest_wait` seconds."""

    arrived: int = 0
    answered: int = 0
    refused: int = 0
    failed: int = 0
    late: int = 0
    queued: int = 0
    oldest_wait: float = 0.0
    waits: Mapping[int, int] = {}
    services: Mapping[int, int] = {}
    totals: Mapping[int, int] = {}
    tokens_out: int = 0
    token_times: Mapping[int, int] = {}


class ServiceLoad(RequestCounts, frozen=True, kw_only=True):
    """The present state of a service. `silent`: no router reported recently, so its requests are unknown."""

    at: float
    replicas: tuple[ReplicaLoad, ...]
    wanted: int  # replicas that it should have now
    in_flight: int = 0
    room: int | None = None  # number of further replicas that would fit now, loans included; None: unknown
    silent: bool = False
    fails: str = ""  # why replicas of it do not start now; empty: they do


class Sized(Struct, frozen=True, kw_only=True):
    """The target size of a service: `replicas`, and the `share` of each in thousandths of a GPU (None: unchanged).

    `cause`: the reason, with numbers. `unattainable`: why its objective cannot be kept, with numbers; empty if it can.
    """

    replicas: int
    cause: Cause
    share: int | None = None
    unattainable: str = ""


class Autoscaler(Protocol):
    """The scaling rule of one service. It keeps its own history; no clock, no randomness."""

    def decide(self, load: ServiceLoad) -> Sized:
        """Called every 1 to 5 s, and at once when a request waits without a replica."""
        ...
