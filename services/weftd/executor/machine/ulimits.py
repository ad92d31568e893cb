"""The ulimits of runs: the bounds of this node, and how a process takes its limits before its shell begins."""

import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from weft.domain.ulimits import NO_LIMIT, is_beyond, ulimit_text
from weftd.executor.machine.node import Refusal

ULIMITS_REFUSED_STATUS = 123
CONTAINERS_MAX: Final[Mapping[str, int]] = {"nofile": 1 << 20}
"""The bounds for containers where the operator has set none: the kernel's own for open files, and no other."""

_RESOURCES: Final[Mapping[str, int]] = {
    "core": resource.RLIMIT_CORE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
}
# Python ignores two signals, and the shell would inherit that. $1 is the status of a refusal, $2 the number of limits.
_SET: Final = """
import os, resource, signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
status, count = int(sys.argv[1]), int(sys.argv[2])
try:
    for pair in sys.argv[3:3 + count]:
        kind, limit = map(int, pair.split("="))
        resource.setrlimit(kind, (limit, limit))
    os.execv("/bin/sh", sys.argv[3 + count:])
except (OSError, ValueError):
    os._exit(status)
"""


def own_bounds() -> dict[str, int]:
    """The hard limits of the executor itself, which its processes inherit."""
    return {name: resource.getrlimit(kind)[1] for name, kind in _RESOURCES.items()}


def check_ulimits(wanted: Mapping[str, int], bounds: Mapping[str, int]) -> None:
    """Raises Refusal if a limit is beyond its bound on this node; a name that `bounds` lacks has none."""
    for name, number in wanted.items():
        if name not in _RESOURCES:
            raise Refusal(f"ulimits.{name}: this node does not know it")
        bound = bounds.get(name, NO_LIMIT)
        if is_beyond(number, bound):
            said, most = ulimit_text(name, number), ulimit_text(name, bound)
            raise Refusal(f"ulimits.{name}: {said} is more than the {most} that this node allows", is_for_good=True)


def with_ulimits(shell: Sequence[str], limits: Mapping[str, int]) -> list[str]:
    """The arguments of a program that sets `limits` for itself and becomes /bin/sh with the arguments `shell`; if the
    kernel does not let it, it ends with ULIMITS_REFUSED_STATUS."""
    pairs = [f"{_RESOURCES[name]}={number}" for name, number in limits.items()]
    own = [sys.executable, "-I", "-S", "-c", _SET]
    return [*own, str(ULIMITS_REFUSED_STATUS), str(len(pairs)), *pairs, *shell]
