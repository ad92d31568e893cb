"""Notes of a node on a run, in sentences for its user."""

import os
import time
from contextlib import suppress

from msgspec import Struct

from weft.domain.job import CauseCode
from weft.domain.quantity import size_text
from weft.messages.nodes import EndReason, Noted
from weftd.executor.runs import Run
from weftd.executor.runtime.limits.groups import Groups, oom_kills

SIGBUS_STATUS = 135
SHM_LEFT_PART = 0.02  # with less of it free, a /dev/shm counts as full


class Watched(Struct, frozen=True, kw_only=True):
    """The last look into a container while it ran. None: that cannot be seen."""

    kills: int = 0  # of its processes, for memory
    is_shm_full: bool | None = None


def watch(pid: int, groups: Groups) -> Watched:
    """`pid`: the container's first process; `groups`: its control groups, if they can be reached."""
    return Watched(kills=oom_kills(groups), is_shm_full=is_full(_inside(pid, "dev/shm")) if pid else None)


def noted_of_ended(run: Run, seen: Watched, memory: int | None, shm: int) -> tuple[Noted, ...]:
    """Notes on a container that has ended. `memory`, `shm`: its limits in bytes."""
    kills = 0 if run.reason is EndReason.OOM else max(seen.kills, len(run.noted))
    return (
        *((process_killed(kills, memory),) if kills else ()),
        *shm_full(run.exit_code, size=shm, is_full=seen.is_shm_full or None),
    )


def process_killed(kills: int, memory: int | None) -> Noted:
    many = "one of its processes was" if kills == 1 else f"{kills} of its processes were"
    limit = "" if memory is None else f": together they may use {size_text(memory)}"
    return Noted(code=CauseCode.PROCESS_KILLED, sentence=f"{many} killed for memory{limit}")


def output_waits(since: float) -> Noted:
    sentence = f"its output has waited for room on the disk of its node since {_clock(since)}"
    return Noted(code=CauseCode.OUTPUT_WAITS, sentence=sentence)


def output_lost(count: int, since: float) -> Noted:
    sentence = f"{size_text(count)} of its output are lost: the disk of its node was full from {_clock(since)} on"
    return Noted(code=CauseCode.OUTPUT_LOST, sentence=sentence)


def shm_full(status: int | None, *, size: int, is_full: bool | None) -> tuple[Noted, ...]:
    """The note on a container that SIGBUS ended. `is_full` None: nobody saw that it was full."""
    if status != SIGBUS_STATUS:
        return ()
    full = "was full" if is_full else "may have been full"
    return (Noted(code=CauseCode.SHM_FULL, sentence=f"its /dev/shm of {size_text(size)} {full}: raise `shm`"),)


def shm_of_host_full() -> tuple[Noted, ...]:
    """The note on a plain process that SIGBUS ended: it uses the /dev/shm of its host."""
    if not is_full("/dev/shm"):
        return ()
    return (Noted(code=CauseCode.SHM_FULL, sentence="the /dev/shm of its node is full"),)


def is_full(folder: str) -> bool | None:
    """True if the file system there is as good as full; None if that cannot be seen."""
    with suppress(OSError):
        found = os.statvfs(folder)
        return found.f_bavail < found.f_blocks * SHM_LEFT_PART
    return None


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(at))


def _inside(pid: int, path: str) -> str:
    """A path as the process sees it: below the root folder of its container."""
    return f"/proc/{pid}/root" + os.sep + path
