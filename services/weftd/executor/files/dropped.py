"""The record of logs that a node dropped by its limits, so that a reader learns when and how much."""

from contextlib import suppress

import msgspec
from msgspec import Struct

from weftd.executor.files.regular import read_small, replace_file

KEPT_MAX = 2000
RECORD_BYTES_MAX = 1 << 20


class Dropped(Struct, frozen=True, array_like=True):
    name: str
    at: float  # seconds since the epoch
    bytes_dropped: int


class DroppedLogs:
    """The newest KEPT_MAX are kept, in one file. A file that cannot be read or written is as good as none."""

    def __init__(self, path: str) -> None:
        self._path = path

    def of(self, name: str) -> Dropped | None:
        return next((one for one in reversed(self._read()) if one.name == name), None)

    def add(self, dropped: Dropped) -> None:
        kept = [*self._read(), dropped][-KEPT_MAX:]
        with suppress(OSError):
            replace_file(self._path, msgspec.json.encode(kept))

    def _read(self) -> list[Dropped]:
        found = read_small(self._path, bytes_max=RECORD_BYTES_MAX)
        if found is None:
            return []
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(found.data, type=list[Dropped])
        return []
