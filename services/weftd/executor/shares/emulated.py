"""What a run with a share of an emulated GPU needs to load the emulated driver: a folder for the device's state, which
all of its processes write, and variables."""

from collections.abc import Mapping
from pathlib import Path

from weft.domain.cluster import Gpu
from weft.sharing.emulated import DEVICE_VARIABLE, MEMORY_VARIABLE
from weft.sharing.places import device_of

ANY_USER = 0o777  # of a container


def device_for(devices: Path, gpu: Gpu) -> Path | None:
    """The folder of an emulated GPU below `devices`, made if it is missing; None for a real one. Raises OSError."""
    if not gpu.emulated:
        return None
    folder = device_of(devices, gpu.uuid)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(ANY_USER)
    return folder


def emulated_variables(gpu: Gpu, device: str) -> Mapping[str, str]:
    return {DEVICE_VARIABLE: device, MEMORY_VARIABLE: str(gpu.memory)}
