"""The settings of telemetry: TELEMETRY_… in the environment."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from weft.service import Connections


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """`home`, `runtime`, `cluster` and `emulated_gpus` are the same as those of the node's executor.

    `cluster`: only this cluster's containers are the node's; empty: those of every cluster with a node of this name.
    `dcgm_names`: show GPUs under the names of NVIDIA's DCGM exporter as well.
    """

    connections: Connections = Connections()
    node_id: str
    pool: str = "default"
    home: Path
    runtime: Literal["process", "docker"] = "process"
    cluster: str = ""
    emulated_gpus: Annotated[int, Meta(ge=0)] = 0
    period_seconds: Annotated[float, Meta(gt=0)] = 1.0
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"
    dcgm_names: bool = False
