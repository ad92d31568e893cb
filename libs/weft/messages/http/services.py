"""The gateway's answers about services over HTTP: how a service is, where its replicas are, what it should run."""

from typing import Annotated

from msgspec import Meta, Struct

from weft.domain.job import Cause
from weft.domain.spec import Command, EnvName, EnvValue, Image, Objective

Seconds = Annotated[float, Meta(description="Seconds since 1970-01-01 UTC.")]
UpdateEnv = Annotated[
    dict[EnvName, EnvValue],
    Meta(max_length=1024, description="Variables to add to the present environment; an empty text removes one."),
]


class UpdateWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the replicas of a service should run from now on; a part that is not given stays as it is."""

    image: Image | None = None
    command: Command | None = None
    env: UpdateEnv | None = None

    def __post_init__(self) -> None:
        if self.image is None and self.command is None and self.env is None:
            raise ValueError("set image, command or env")


class LoanView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a service has of another job: `gpus` (a share is a part of 1) by its replica `rank`. `ranks`: how many ranks
    of the lender gave way; 0: the whole job did, and waits. `name`: of a lender that the caller may see."""

    lender: str
    name: str = ""
    rank: int
    gpus: float
    ranks: int = 0
    since: Seconds = 0.0


class UpdateView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An update under way: `replaced` of `replicas` run `revision`. `since`: when it was asked for. `back_to`: the
    revision that comes back if no replica of this one becomes ready; none once a replica did."""

    revision: int
    replaced: int
    replicas: int
    since: Seconds
    back_to: int | None = None


class TokensView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tokens of a service that serves a model, in the same seconds: `rate_in` of prompts and `rate_out` of answers
    per second, by what engines counted in them; `cached`: the part of the former that was in a prefix cache. `ttft`,
    `tpot`: seconds to the first token of a stream and for each further one, of the percentile that the job promises, 99
    without one, to the next fifth. By the metrics of its engines, now: `waiting` requests, and `kv_used`, the part of
    the KV cache that is in use, the highest of all replicas."""

    rate_in: float = 0.0
    rate_out: float = 0.0
    cached: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    waiting: int | None = None
    kv_used: float | None = None


class RequestsView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requests to a service in the last `seconds`, by what its routers reported: how many arrived, and of those how
    many were refused (429), failed, and were answered later than the objective allows. `rate` per second. `p50`, `p99`,
    `objective`: from the arrival to the first byte of the answer, of that percentile, in seconds, to the next fifth;
    `objective` of the percentile that the job promises. `in_flight` and `queued`: now; `rate_now`: per second, in the
    last five to ten. `tokens`: only a service that serves a model has them."""

    seconds: float
    rate: float
    rate_now: float
    arrived: int
    refused: int = 0
    failed: int = 0
    late: int = 0
    in_flight: int = 0
    queued: int = 0
    p50: float | None = None
    p99: float | None = None
    objective: float | None = None
    tokens: TokensView | None = None


class UnreadyView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A replica that runs and takes no requests: why, by its node's last probe. `since`: when it began."""

    rank: int
    why: str
    since: Seconds | None = None


class ServiceView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a job that serves requests is now. `url`: where its requests go; empty: this cluster has no router.

    `ready` and `draining`: replicas that take requests, and that finish those they have, by what their nodes report;
    None: no node of its replicas reported lately. `requests`: none if no router reports the service. `kept`: was the
    objective kept in that time? None: it has no objective, or nothing arrived. By the autoscaler: `unattainable`, why
    the objective cannot be kept; `shedding`, that requests are refused for that; `sized_for`, why the service has the
    size that it should have, in the view of one job. `unready`: replicas that run and are not ready, the first few.
    """

    wanted: int
    granted: int
    ready: int | None
    draining: int = 0
    least: int = 0
    most: int = 0
    url: str = ""
    public: bool = False
    revision: int = 0
    update: UpdateView | None = None
    requests: RequestsView | None = None
    objective: Objective | None = None
    kept: bool | None = None
    unattainable: str = ""
    shedding: str = ""
    sized_for: Cause | None = None
    loans: tuple[LoanView, ...] = ()
    unready: tuple[UnreadyView, ...] = ()


class EndpointView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One replica of a service: where it listens, and whether it takes requests (`ready`), or finishes those that it
    has before it is stopped (`draining`). `since`: when it was first ready, else when it began, if that is known.
    `why`: the reason why it takes none, by its node's last probe."""

    epoch: int
    rank: int
    node_id: str
    address: str
    port: int
    ready: bool = False
    draining: bool = False
    revision: int = 0
    since: Seconds | None = None
    why: str = ""


class EndpointsView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All replicas of a service that listen, by rank. `url`: of the service at the router; `token`: requests there need
    one. `digest`: another one whenever anything here is different; also the answer's ETag."""

    job_id: str
    name: str
    digest: str
    url: str = ""
    token: bool = True
    endpoints: tuple[EndpointView, ...] = ()
