"""The file WEFT_MEMBERS, in which a run of a job that resizes live finds the job's present ranks.

`{"changes": 3, "ranks": [{"role": "worker", "rank": 0, "address": "10.0.0.7", "port": 29500}], "least": 1, "most": 8}`

The job can write to the folder of this file. So the new file is written elsewhere and renamed into that folder: the job
sees it whole, and can redirect nothing. The rename replaces whatever the job put there, a link or a pipe too, but no
folder: that is an error. The old file is read without following a link and without waiting.
"""

import os
from contextlib import suppress

import msgspec
from msgspec import Struct

from weft.domain.spec import ResizeSignal
from weft.messages.nodes import Members
from weftd.executor.files.home import MEMBERS, Home
from weftd.executor.files.regular import read_small, write_whole
from weftd.executor.runs import RunKey

FOR_EVERY_USER = 0o644  # a container's user is another than ours; the folders above keep other users of the host out
BYTES_MAX = 4 << 20
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Counted(Struct):
    changes: int


def encoded(members: Members) -> bytes:
    ranks = [
        {"role": member.role, "rank": member.rank, "address": member.address, "port": member.port}
        for member in members.ranks
    ]
    content = {"changes": members.changes, "ranks": ranks, "least": members.least, "most": members.most}
    return msgspec.json.encode(content) + b"\n"


def show(home: Home, key: RunKey, members: Members) -> bool:
    """Replace the run's file, unless it has this content. Returns whether its number of changes was another, or none.
    Raises OSError.
    """
    text, path = encoded(members), home.members(key)
    found = read_small(path, bytes_max=BYTES_MAX)
    if found is None or found.data != text:
        _replace(home, key, text)
    return found is None or _changes(found.data) != members.changes


def signal_of(members: Members) -> ResizeSignal | None:
    """The signal that follows a change. Raises ValueError for one that no job can ask for."""
    return ResizeSignal(members.signal) if members.signal else None


def why_not(error: OSError) -> str:
    """The error as a reason of why the members were not shown."""
    return f"members: {error.strerror or error}"


def _changes(text: bytes) -> int | None:
    try:
        return msgspec.json.decode(text, type=_Counted).changes
    except (msgspec.DecodeError, RecursionError):  # The job wrote it.
        return None


def _replace(home: Home, key: RunKey, text: bytes) -> None:
    new = f"{home.root}/members.new"
    with suppress(FileNotFoundError):
        os.unlink(new)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.fchmod(fd, FOR_EVERY_USER)
            write_whole(fd, text)
        finally:
            os.close(fd)
        folder = os.open(home.run(key), FOLDER)
        try:
            os.rename(new, MEMBERS, dst_dir_fd=folder)
        finally:
            os.close(folder)
    except OSError:
        with suppress(OSError):
            os.unlink(new)
        raise
