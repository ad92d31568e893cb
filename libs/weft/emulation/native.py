"""The library of the emulated driver, which runs with a share of an emulated GPU load in place of NVIDIA's.

`python -m weft.emulation.native [FOLDER…]` compiles it, and puts it into each folder. It needs nothing but Python and a
compiler, as the build of an image has them.
"""

import sys
from pathlib import Path

from weft.sharing import native

SOURCES = Path(__file__).parent / "native"
NAME = "libcuda.so.1"
# Its folder is for LD_LIBRARY_PATH, so it has one of its own.
DRIVER = native.Library(
    path=f"emulated/{NAME}",
    sources=tuple(sorted(SOURCES.glob("*.c"))),
    headers=(SOURCES, native.SOURCES),
    flags=("-shared", "-Wl,-z,now", f"-Wl,-soname,{NAME}", "-Wl,-Bsymbolic", f"-I{native.SOURCES}"),
)

if __name__ == "__main__":
    native.main(DRIVER, sys.argv[1:])
