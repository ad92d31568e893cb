"""The stacks of the Python programs of a run that hangs, by py-spy where the node has it.

py-spy stops a program for some milliseconds and reads its memory; the program needs nothing for that. It is run for a
few processes of a run only, and for a few seconds, whatever it finds.
"""

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path

PROGRAM = "py-spy"
SECONDS_MAX = 10.0  # for all processes of one run
PROCESSES_MAX = 8
LOOKED_AT_MAX = 256
BYTES_MAX = 48 << 10  # a pipe takes them at once


def write_stacks(pipe: int, text: str) -> None:
    """Write into the pipe of a run's output, of which `pipe` is the reading end, without waiting: where the pipe has no
    room, the text is lost. Raises OSError."""
    fd = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with suppress(BlockingIOError):
            os.write(fd, f"\nweft: this job hangs\n{text}\n".encode(errors="replace"))
    finally:
        os.close(fd)


async def stacks_of(pid: int) -> str:
    """The stacks of the Python processes among a process and its descendants, or why there are none."""
    program = shutil.which(PROGRAM)
    if program is None:
        return f"no stacks: {PROGRAM} is not installed on this node"
    found = [each for each in descendants(pid) if is_python(each)][:PROCESSES_MAX]
    if not found:
        return "no stacks: it runs no Python program"
    told: list[str] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_MAX):
            for each in found:  # one by one: those that are done by the end count
                told += [await _dumped(program, each)]
    if len(told) < len(found):
        told.append(f"{len(found) - len(told)} more processes: {PROGRAM} took longer than {SECONDS_MAX:g} s")
    return "\n".join(told).encode(errors="replace")[:BYTES_MAX].decode(errors="ignore")


def descendants(pid: int) -> list[int]:
    """The process and its descendants, nearest first; empty if the process is gone."""
    found, place = [pid], 0
    while place < len(found) and len(found) < LOOKED_AT_MAX:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{found[place]}/task"):
                children = Path(f"/proc/{found[place]}/task/{task}/children").read_text().split()
                found += [int(child) for child in children if int(child) not in found]
        place += 1
    return found[:LOOKED_AT_MAX]


def is_python(pid: int) -> bool:
    with suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    return False


async def _dumped(program: str, pid: int) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "dump",
            "--pid",
            str(pid),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return f"no stacks of process {pid}: {PROGRAM}: {error.strerror}"
    try:
        assert process.stdout is not None
        data = await process.stdout.readexactly(BYTES_MAX)
    except asyncio.IncompleteReadError as error:
        data = error.partial
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return data.decode(errors="replace").rstrip()
