"""Starts one command under a small shell that outlives it and writes its exit status to a file."""

import os
import signal
import stat
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from weftd.executor.leave import Leave
from weftd.executor.machine.ulimits import with_ulimits
from weftd.executor.runtime.process.pipes import ENDED_FD, OUTPUT_FD, RELEASE_FD, RELEASE_SECONDS_MAX, ShimEnds

LOCK_FD = 9
CGROUP_REFUSED_STATUS = 125  # ULIMITS_REFUSED_STATUS is another
TOO_LATE_STATUS = 124
NO_ULIMITS: Mapping[str, int] = MappingProxyType({})
UPTIME = "/proc/uptime"  # seconds with two decimals, on the same clock as the fence

# The shim runs in the job's environment, so it sets no variable that a user would. It needs no program but `sh`, and
# `sleep` where its executor has ended.
# Signals go to the whole group: the shell catches them (`:`) and waits on; the command has their defaults.
# After the command it waits for its release (pipes.py). A signal ends that wait, as the end of the executor does: it
# waits again, a second later.
# $1 the run's folder, $2 the working directory, $3 the file that says until when runs may begin (empty: always), $4 the
# last good sync at the permission (leave.py), $5 the number of cgroups; then the cgroups, then the command.
_SHIM = f"""
trap : HUP INT QUIT USR1 USR2 ALRM TERM PIPE
__weft_run=$1 __weft_dir=$2 __weft_leave=$3 __weft_at=$4 __weft_left=$5
shift 5
while [ "$__weft_left" -gt 0 ]; do
  echo 0 >"$1/cgroup.procs" || exit {CGROUP_REFUSED_STATUS}
  shift
  __weft_left=$((__weft_left - 1))
done
if [ -n "$__weft_leave" ]; then
  read -r __weft_until __weft_since <"$__weft_leave" && read -r __weft_now __weft_idle <{UPTIME} &&
    [ "${{__weft_now%.*}}${{__weft_now#*.}}" -lt "$__weft_until" ] && [ "$__weft_since" -le "$__weft_at" ] ||
    exit {TOO_LATE_STATUS}
fi
echo $$ >&{LOCK_FD}
echo 2>/dev/null >&{ENDED_FD}
cd -- "$__weft_dir" && "$@" {LOCK_FD}>&- {ENDED_FD}>&- {OUTPUT_FD}>&- {RELEASE_FD}>&-
__weft_left=$?
echo "$__weft_left" 1<>"$__weft_run/exit"
exec {ENDED_FD}>&-
__weft_try=0
until read -r __weft_go <&{RELEASE_FD} || [ "$__weft_try" -ge {RELEASE_SECONDS_MAX} ]; do
  __weft_try=$((__weft_try + 1))
  sleep 1 >/dev/null 2>&1
done
exit "$__weft_left"
"""

_CAUGHT = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGPIPE,  # Python ignores these two, and the job would inherit that
    signal.SIGXFSZ,
)


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    folder: str,
    workdir: str,
    lock_fd: int,
    ends: ShimEnds,
    cgroups: Sequence[str],
    leave: Leave | None = None,
    ulimits: Mapping[str, int] = NO_ULIMITS,
) -> int:
    """Spawn the shim; returns its pid, also its session and group. It holds the lock of `lock_fd` while it lives.

    Once `leave` holds no more, the command is not started, and the shim ends with TOO_LATE_STATUS and without writing a
    pid. `ends` are its ends of the pipes: it writes a line to that of its end after it has written its pid and before
    it starts the command. If it cannot have its `ulimits`, it ends with ULIMITS_REFUSED_STATUS, likewise.
    """
    path, at = ("", 0) if leave is None or not os.path.exists(UPTIME) else (leave.path, leave.at)
    shell = ["sh", "-c", _SHIM, "weft-run", folder, workdir, path, str(at), str(len(cgroups)), *cgroups, *command]
    arguments = with_ulimits(shell, ulimits) if ulimits else shell
    return os.posix_spawn(
        arguments[0] if ulimits else "/bin/sh",
        arguments,
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, lock_fd, LOCK_FD),
            (os.POSIX_SPAWN_DUP2, ends.write, 1),
            (os.POSIX_SPAWN_DUP2, ends.write, 2),
            (os.POSIX_SPAWN_DUP2, ends.output, OUTPUT_FD),
            (os.POSIX_SPAWN_DUP2, ends.release, RELEASE_FD),
            (os.POSIX_SPAWN_DUP2, ends.ended, ENDED_FD),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=_CAUGHT,
    )


def find_command(name: str, *, path: str, workdir: str) -> tuple[str, str]:
    """The path of `name`, as the shell would find it from `workdir`, and why it cannot be run; empty: it can be."""
    folders = [""] if "/" in name else path.split(os.pathsep)
    why = f"command not found: {name}"
    for folder in folders:
        found = os.path.join(workdir, folder, name)
        try:
            mode = os.stat(found).st_mode
        except (OSError, ValueError):  # it has a null character
            continue
        if stat.S_ISREG(mode):
            if os.access(found, os.X_OK):
                return found, ""
            shown = name if "/" in name else found
            why = f"{shown} is not executable (mode {stat.S_IMODE(mode):04o}): `chmod +x` makes it so"
        elif stat.S_ISDIR(mode) and "/" in name:
            why = f"{name} is a folder, not a command"
    return "", why
