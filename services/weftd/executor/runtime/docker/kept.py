"""Each run's container, on disk before it starts: the guard uses this when the engine does not answer."""

from msgspec import Struct

from weftd.executor.files.home import Home
from weftd.executor.files.runfiles import RunFiles


class GuardedContainer(Struct, frozen=True, kw_only=True):
    container: str
    grace: float
    stop_signal: str = "SIGTERM"


def guarded(home: Home) -> RunFiles[GuardedContainer]:
    return RunFiles(home, "containers", GuardedContainer)
