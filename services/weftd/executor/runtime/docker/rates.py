"""The egress limit of each container, on disk: a later executor has no other source for it.

Before a change the note is UNSURE, after it the new rate: an executor that finds UNSURE sets the rate again. A
container without a note was never limited.
"""

from collections.abc import Container

import msgspec
from msgspec import Struct

from weftd.executor.files.home import Home
from weftd.executor.files.runfiles import RunFiles
from weftd.executor.runs import NO_LIMIT, RunKey

UNSURE = 0


class Note(Struct, frozen=True):
    container: str
    rate: int


class EgressRates:
    def __init__(self, home: Home) -> None:
        self._files = RunFiles(home, "egress", Note)
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
        self._files.write(key, note)

    def forget(self, key: RunKey) -> None:
        self._known.pop(key, None)
        self._files.remove(key)

    def forget_others(self, kept: Container[RunKey]) -> None:
        """Remove all notes but those of these runs."""
        self._files.keep(kept)

    def _read(self, key: RunKey, container: str) -> Note:
        try:
            note = self._files.read(key)
        except msgspec.DecodeError:
            return Note(container, UNSURE)  # half a note, on a full disk
        return note if note is not None and note.container == container else Note(container, NO_LIMIT)
