"""Settings for sessions of people in the runs of this node."""

from typing import Annotated

from msgspec import Meta, Struct


class SessionSettings(Struct, frozen=True, kw_only=True):
    sessions: bool = True  # false: nobody gets a shell, a command or a port into the runs of this node
    sessions_max: Annotated[int, Meta(ge=0)] = 64
    sessions_per_job_max: Annotated[int, Meta(ge=0)] = 32
    session_idle_seconds: Annotated[float, Meta(ge=0)] = 14_400.0  # without input and output; 0: for ever
    sessions_bytes_per_second: Annotated[float, Meta(gt=0)] = 64.0 * (1 << 20)  # of all together
