"""Hydra's launcher on Weft, where Hydra looks for plug-ins: `-m hydra/launcher=weft`.

It is the launcher of the package `hydra-submitit-launcher` with Weft's executor, and is absent where that package is.
"""

from contextlib import suppress
from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore

with suppress(ImportError):
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher

    class WeftLauncher(BaseSubmititLauncher):
        _EXECUTOR = "weft"

    @dataclass
    class WeftConf(BaseQueueConf):
        """The fields that all executors of Submitit have, and some of a job file: `hydra.launcher.priority=10`."""

        _target_: str = "hydra_plugins.weft_launcher.WeftLauncher"
        image: str | None = None
        priority: int = 0
        preemptible: bool = True
        gpu_model: str | None = None
        env: dict[str, str] = field(default_factory=dict)
        labels: dict[str, str] = field(default_factory=dict)

    ConfigStore.instance().store(group="hydra/launcher", name="weft", node=WeftConf, provider="weft")
