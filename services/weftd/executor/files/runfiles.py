"""A folder of the executor's home with one JSON file per run, which the next executor reads."""

import os
from collections.abc import Container
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from weftd.executor.files.home import Home
from weftd.executor.files.regular import read_small, replace_file
from weftd.executor.runs import RunKey

RECORD_BYTES_MAX = 64 * 1024

T = TypeVar("T", bound=Struct)


class RunFiles(Generic[T]):
    """The files `<job>-<epoch>-<rank>` of one folder, each with a `kind`. No job in a container reaches them."""

    def __init__(self, home: Home, folder: str, kind: type[T]) -> None:
        self._folder = f"{home.root}/{folder}"
        self._kind = kind

    def write(self, key: RunKey, record: T) -> None:
        """Raises OSError."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        replace_file(f"{self._folder}/{key}", msgspec.json.encode(record))

    def read(self, key: RunKey) -> T | None:
        """None if there is no file. Raises msgspec.DecodeError if it cannot be read."""
        path = f"{self._folder}/{key}"
        found = read_small(path, bytes_max=RECORD_BYTES_MAX)
        if found is None and not os.path.lexists(path):
            return None
        return msgspec.json.decode(b"" if found is None else found.data, type=self._kind)

    def all(self) -> dict[RunKey, T]:
        """Every file that can be read."""
        found: dict[RunKey, T] = {}
        for key in self._keys():
            with suppress(msgspec.DecodeError, RecursionError):
                if (record := self.read(key)) is not None:
                    found[key] = record
        return found

    def remove(self, key: RunKey) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{self._folder}/{key}")

    def keep(self, keys: Container[RunKey]) -> None:
        """Remove the files of all other runs."""
        for key in self._keys():
            if key not in keys:
                self.remove(key)

    def _keys(self) -> list[RunKey]:
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []
        return [key for name in names if (key := RunKey.parse(name)) is not None]
