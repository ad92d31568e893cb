"""The scorer's settings: SCORER_… in the environment."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from weft.service.config import Connections
from weftd.scorer.thinking.benchmarks import BenchmarkSettings


class ScorerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`profile`: a file of earlier measurements of GPUs; `token_file`: with the token to submit benchmarks with."""

    connections: Connections = Connections()
    profile: str = ""
    token_file: str = ""
    benchmarks: Literal["off", "on"] = "on"
    benchmark_tenants: tuple[str, ...] = ("weft", "admin")  # whose benchmarks count: the token's tenant, and people's
    benchmark_image: str = ""
    benchmark_idle_seconds: float = BenchmarkSettings().idle_seconds
    benchmark_every_seconds: float = BenchmarkSettings().every_seconds
    benchmark_seconds: float | None = None
    learnt_kept_days: Annotated[float, Meta(ge=0)] = 90.0  # curves, and scores of nodes that are gone; 0: for ever
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"
