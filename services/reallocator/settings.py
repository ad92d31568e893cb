"""The reallocator's settings: REALLOCATOR_… in the environment."""

from typing import Annotated

import msgspec

from libs.domain.spec import TuningMode
from libs.service.config import Connections
from libs.tuning.envelope import GROWTH
from libs.tuning.window import WINDOW_SECONDS


class ReallocatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    connections: Connections = Connections()
    pool: str = "default"
    tuning: TuningMode = TuningMode.ADVISE
    growth: Annotated[float, msgspec.Meta(ge=1.0)] = GROWTH
    window_seconds: Annotated[float, msgspec.Meta(ge=1.0)] = WINDOW_SECONDS
    review_seconds: float = 5.0
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"
