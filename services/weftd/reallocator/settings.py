"""The reallocator's settings: REALLOCATOR_… in the environment."""

from typing import Annotated

import msgspec

from weft.domain.spec import TuningMode
from weft.planning.partition import Rules
from weft.service.config import Connections
from weft.serving.policies import OURS
from weft.tuning.envelope import GROWTH
from weft.tuning.window import WINDOW_SECONDS
from weftd.reallocator.thinking.partitioning import Plans


class ReallocatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    connections: Connections = Connections()
    pool: str = "default"
    tuning: TuningMode = TuningMode.ON
    growth: Annotated[float, msgspec.Meta(ge=1.0)] = GROWTH
    window_seconds: Annotated[float, msgspec.Meta(ge=1.0)] = WINDOW_SECONDS
    review_seconds: float = 5.0
    partition: TuningMode = TuningMode.ON
    partition_theta1: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.1
    partition_theta2: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.2
    partition_seconds: Annotated[float, msgspec.Meta(ge=1.0)] = 60.0
    partition_cool_down_seconds: Annotated[float, msgspec.Meta(ge=0.0)] = 120.0
    serving: TuningMode = TuningMode.ON
    serving_policy: str = "weft"
    serving_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=60.0)] = 1.0
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if self.serving_policy not in OURS:
            raise ValueError(f"serving_policy: there is no {self.serving_policy}, there are {', '.join(OURS)}")

    @property
    def plans(self) -> Plans:
        return Plans(
            mode=self.partition,
            rules=Rules(theta1=self.partition_theta1, theta2=self.partition_theta2),
            seconds=self.partition_seconds,
            cool_down_seconds=self.partition_cool_down_seconds,
        )
