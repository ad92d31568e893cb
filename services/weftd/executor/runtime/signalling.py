"""Signals the main process of a run, after a change of members or to stop it, and never another process.

A program installs its handlers some time after its start, and without a handler each of these signals ends it. So the
kernel's record of the process is read before a signal that must not end it. What another process does between this look
and the signal is its own.
"""

import os
import signal
from pathlib import Path

from weft.domain.spec import ResizeSignal, StopSignal

CAUGHT, IGNORED, BLOCKED = "SigCgt", "SigIgn", "SigBlk"


def not_handled(told: ResizeSignal) -> str:
    return f"{told}: the main process does not handle it, and would end"


def signal_child(parent: int, parent_fd: int, told: ResizeSignal | StopSignal) -> str:
    """Signal the only child of a process, of which `parent_fd` is a pidfd. Empty, or why not.

    A change of members is signalled only to a process that handles it.

    A pid may be reused, a pidfd never is: so the child is opened first, and then checked to be the parent's.
    """
    try:
        child = only_child(parent)
        if child is None:
            return f"{told}: its command is not running"
        child_fd = os.pidfd_open(child)
        try:
            if child != only_child(parent):
                return f"{told}: its command is not running"
            signal.pidfd_send_signal(parent_fd, 0)  # Still there, so its pid was not reused.
            if isinstance(told, ResizeSignal) and not handles(child, told):
                return not_handled(told)
            signal.pidfd_send_signal(child_fd, signal.Signals[told])
        finally:
            os.close(child_fd)
    except ProcessLookupError:
        return f"{told}: its command is not running"
    except OSError as error:
        return f"{told}: {error.strerror or error}"
    return ""


def shows_children() -> bool:
    """True if this host shows the children of a process."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def only_child(parent: int, container: str = "") -> int | None:
    """The pid of a process's first child, if it can be seen from here. `container`: the id that the parent's control
    group must name.
    """
    try:
        if container and container not in Path(f"/proc/{parent}/cgroup").read_text():
            return None
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def handles(pid: int, told: ResizeSignal) -> bool:
    """Whether the process catches, blocks or ignores the signal; True where that cannot be seen."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True
    status = dict(line.split(":", 1) for line in lines)
    masks = {name: int(status.get(name, "0"), 16) for name in (CAUGHT, IGNORED, BLOCKED)}
    if masks[BLOCKED] & _bit(signal.SIGSEGV):  # C libraries block all signals for an instant, around a fork.
        masks[BLOCKED] = 0
    return any(mask & _bit(signal.Signals[told]) for mask in masks.values())


def _bit(number: signal.Signals) -> int:
    return 1 << (number - 1)
