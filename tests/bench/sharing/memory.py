"""Memory: what a capped job gets by every call that allocates, in bytes beyond its cap."""

import subprocess
import sys

from tests.bench.figures import Aim
from tests.bench.sharing.rig import Rig

CALLS = (
    *("cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemAllocManaged", "cuMemAllocAsync", "cuMemAllocFromPoolAsync"),
    *("cuMemCreate", "cuArrayCreate_v2", "cuArray3DCreate_v2"),
)
CAP = 1 << 30
PIECE = 37 << 20  # leaves a rest
PROGRAM = """
import sys
from tests.support.driver_client import Driver
driver, held = Driver(), 0
while driver.allocate(int(sys.argv[2]), sys.argv[1]) is not None:
    held += int(sys.argv[2])
print(held)
"""


def memory(rig: Rig) -> dict[str, Aim]:
    """The most that any call got beyond the cap; and the least part of the cap that a call got."""
    beyond: list[int] = []
    got: list[int] = []
    for number, call in enumerate(CALLS):
        rig.share(f"m{number}", 500, memory=CAP)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, call, str(PIECE)],
            env=rig.environment(f"m{number}"),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        held = int(done.stdout)
        beyond.append(max(0, held - CAP))
        got.append(held)
    rig.clear()
    print(f"emulated, {len(CALLS)} calls under a cap of {CAP} bytes: {max(beyond)} over it, at least {min(got)} given")
    return {
        "emulated.memory_bytes_over_cap": Aim(value=max(beyond), aim=0),
        "emulated.memory_bytes_got_of_cap": Aim(value=min(got), aim=CAP - PIECE, at_least=True),
    }
