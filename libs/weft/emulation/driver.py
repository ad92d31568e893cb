"""The emulated driver, which runs with a share of an emulated GPU load in place of NVIDIA's.

`python -m weft.emulation.driver [FOLDER…]` compiles it, and puts it into each folder.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from weft.domain.cluster import Gpu
from weft.emulation.device import DEVICE_VARIABLE, MEMORY_VARIABLE
from weft.sharing import native
from weft.sharing.places import device_of

SOURCES = Path(__file__).parent / "native"
NAME = "libcuda.so.1"
# Its folder is for LD_LIBRARY_PATH, so it has one of its own.
DRIVER = native.Library(
    path=f"emulated/{NAME}",
    sources=tuple(sorted(SOURCES.glob("*.c"))),
    headers=(SOURCES, native.SOURCES),
    flags=("-shared", "-Wl,-z,now", f"-Wl,-soname,{NAME}", "-Wl,-Bsymbolic", f"-I{native.SOURCES}"),
)
_ANY_USER = 0o777  # of a container


class EmulatedDriver:
    """Gives a run the driver: its library, a folder for the state of the GPU, and variables."""

    library = DRIVER

    def device(self, devices: Path, gpu: Gpu) -> Path:
        """The folder below `devices` that all processes on the GPU write, made if it is missing. Raises OSError."""
        folder = device_of(devices, gpu.uuid)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(_ANY_USER)
        return folder

    def variables(self, gpu: Gpu, device: str) -> Mapping[str, str]:
        """`device`: the folder as the run sees it."""
        return {DEVICE_VARIABLE: device, MEMORY_VARIABLE: str(gpu.memory)}


if __name__ == "__main__":
    native.main(DRIVER, sys.argv[1:])
