"""A service to simulate: its requests, its replicas, its objective."""

from math import ceil, inf

from msgspec import Struct

from weft.serving.loads import Goal
from weft.simulator.serving.rates import RequestRate

WHOLE = 1000  # thousandths of a GPU
LOADED = 0.7


class Spread(Struct, frozen=True, kw_only=True):
    """Times in seconds: log-normal with this mean and coefficient of variation (0: all alike)."""

    mean_s: float
    cv: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.mean_s < inf or not 0 <= self.cv <= 100:
            raise ValueError("a mean must not be below 0, and a coefficient of variation must be 0 to 100")


class TraceService(Struct, frozen=True, kw_only=True):
    """One service. Times in seconds.

    `work`: how long a request takes at a replica with a whole GPU of score 1.0; `gpu_part`: the part of that for
    which it needs the GPU, so that a share of a GPU, or a slow one, makes that part longer. A replica answers up to
    `concurrency` requests at once, each in the same time. `start`: from a replica's place until it is ready. `queue`:
    the most requests that wait, beyond which they are refused; `timeout_s`: how long one waits before it is lost.
    `gpus`: whole GPUs of each replica; or `share`, up to `share_most`: thousandths of one GPU.
    `late_last`: requests that cannot keep the objective any more are served after all others; else in order of arrival.
    `want`: the replicas that it has, all of them ready, when the simulation begins.
    """

    name: str
    rate: RequestRate
    work: Spread
    start: Spread
    latency_s: float | None = None
    percentile: float = 99.0
    rate_promised: float | None = None
    least: int = 1
    most: int = 1
    want: int = 1
    concurrency: int = 1
    queue: int = 1000
    timeout_s: float = 60.0
    gpus: int = 1
    share: int | None = None
    share_most: int | None = None
    gpu_part: float = 1.0
    late_last: bool = True

    @property
    def goal(self) -> Goal:
        """The goal as its autoscaler sees it."""
        return Goal(
            least=self.least,
            most=self.most,
            concurrency=self.concurrency,
            latency=self.latency_s,
            percentile=self.percentile,
            rate=self.rate_promised,
            share=self.share,
            share_most=self.share_most,
        )

    def slowness(self, share: int | None, score: float) -> float:
        """The factor by which a request takes longer with that share of a GPU of that score."""
        part = 1.0 if share is None else share / WHOLE
        return (1.0 - self.gpu_part) + self.gpu_part * score / part

    def held(self, share: int | None) -> float:
        """GPUs that one replica holds."""
        return float(self.gpus) if share is None else share / WHOLE


class Services(Struct, frozen=True, kw_only=True):
    """The services of a simulation, for its first `lasts_s` seconds. `every_s`: between two looks of an autoscaler at a
    service. `lend_s`: until a replica of a job that lends its GPU has left it. `rest_s`: for so long no elastic job
    grows onto a GPU that a service returned. `beside_training`: what its replicas leave of a shared GPU, others use all
    the time, so that none gets more than its share."""

    services: tuple[TraceService, ...]
    lasts_s: float = 86_400.0
    every_s: float = 1.0
    lend_s: float = 2.0
    rest_s: float = 60.0
    beside_training: bool = False


def replicas_for(service: TraceService, rate: float, *, loaded: float = LOADED) -> int:
    """How many replicas a person would give a service for that rate of requests, within its bounds: each is to be busy
    for the part `loaded` of its time."""
    each = service.concurrency / (service.work.mean_s * service.slowness(service.share, 1.0))
    return min(service.most, max(service.least, 1, ceil(rate / (each * loaded))))
