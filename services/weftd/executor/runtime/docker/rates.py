"""The egress limit of each container, on disk: a later executor has no other source for it.

egress/<job>-<epoch>-<rank>   in the home, where no job reaches it; removed with the run

Before a change the note is UNSURE, after it the new rate: an executor that finds UNSURE sets the rate again. A
container without a note was never limited.
"""

import os
from contextlib import suppress

import msgspec
from msgspec import Struct

from weftd.executor.home import Home
from weftd.executor.runs import NO_LIMIT, RunKey

UNSURE = 0


class Note(Struct, frozen=True):
    container: str
    rate: int


class EgressRates:
    def __init__(self, home: Home) -> None:
        self._folder = f"{home.root}/egress"
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._known: dict[RunKey, Note] = {}

    def of(self, key: RunKey, container: str) -> int:
        """The container's rate: bytes per second, NO_LIMIT, or UNSURE."""
        note = self._known.get(key)
        if note is None or note.container != container:
            note = self._known[key] = self._read(key, container)
        return note.rate

    def note(self, key: RunKey, container: str, rate: int) -> None:
        """Store the container's rate. Raises OSError."""
        note = self._known[key] = Note(container, rate)
        new = f"{self._folder}/.{key}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, msgspec.json.encode(note))
        finally:
            os.close(fd)
        os.replace(new, f"{self._folder}/{key}")

    def forget(self, key: RunKey) -> None:
        self._known.pop(key, None)
        with suppress(FileNotFoundError):
            os.unlink(f"{self._folder}/{key}")

    def forget_others(self, kept: set[str]) -> None:
        """Remove all notes but those of the runs with these names."""
        for name in os.listdir(self._folder):
            if name not in kept:
                with suppress(FileNotFoundError):
                    os.unlink(f"{self._folder}/{name}")

    def _read(self, key: RunKey, container: str) -> Note:
        try:
            with open(f"{self._folder}/{key}", "rb") as file:
                note = msgspec.json.decode(file.read(), type=Note)
        except FileNotFoundError:
            return Note(container, NO_LIMIT)
        except (OSError, msgspec.DecodeError):
            return Note(container, UNSURE)  # half a note, on a full disk
        return note if note.container == container else Note(container, NO_LIMIT)
