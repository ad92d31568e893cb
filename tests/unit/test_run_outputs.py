"""The output of runs reaches their logs, and their shims end, whatever becomes of the executor and its guard."""

import asyncio
import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.runs import until
from weftd.executor.runs import RunKey
from weftd.executor.runtime.process.outputs import Outputs
from weftd.executor.runtime.process.pipes import Inodes, RunPipes, ShimEnds, find_pipes, make_pipes, open_log
from weftd.executor.runtime.process.shim import spawn


def key(rank: int) -> RunKey:
    return RunKey(job_id="j", epoch=1, rank=rank)


@contextmanager
def locked(log: Path) -> Iterator[None]:
    """The log as a guard holds it that is frozen while it appends."""
    fd = open_log(str(log))
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


async def copied(outputs: Outputs, rank: int) -> None:
    done = asyncio.Event()
    outputs.when_copied(key(rank), done.set)
    await done.wait()


def begin(outputs: Outputs, rank: int, log: Path) -> tuple[RunPipes, ShimEnds]:
    log.touch()
    pipes, ends = make_pipes()
    outputs.copy(key(rank), pipes, str(log))
    return pipes, ends


async def test_a_guard_frozen_while_it_appends_delays_no_other_run_and_loses_nothing(tmp_path: Path) -> None:
    outputs = Outputs()
    first, second = tmp_path / "first", tmp_path / "second"
    ends = [begin(outputs, rank, log)[1] for rank, log in enumerate((first, second))]
    try:
        with locked(first):
            os.write(ends[0].write, b"one")
            os.write(ends[1].write, b"two")
            await until(lambda: second.read_bytes() == b"two")
            await copied(outputs, 1)
            assert first.read_bytes() == b""
            assert outputs.blocked_at(key(0)) is None, "it waits for no room on the disk"
        await copied(outputs, 0)
        assert first.read_bytes() == b"one"
        os.write(ends[0].write, b"more")
        await until(lambda: first.read_bytes() == b"onemore")
        assert [outputs.close(key(rank)) for rank in (0, 1)] == [0, 0]
    finally:
        await asyncio.to_thread(outputs.stop)
        for each in ends:
            each.close()


async def test_output_that_the_guard_has_copied_is_not_waited_for(tmp_path: Path) -> None:
    outputs = Outputs()
    log = tmp_path / "log"
    pipes, ends = begin(outputs, 0, log)
    try:
        with locked(log):
            os.write(ends.write, b"one")
            done = asyncio.Event()
            outputs.when_copied(key(0), done.set)
            assert os.read(pipes.output, 10) == b"one"  # as the guard does
            assert not done.is_set()
        await asyncio.wait_for(done.wait(), 10)
    finally:
        await asyncio.to_thread(outputs.stop)
        ends.close()


def ended_without_executor(folder: Path, path: str) -> tuple[int, Inodes]:
    """The shim of a command that ended with status 3, whose executor was killed before the shim began; its pipes."""
    pipes, ends = make_pipes()
    inodes = pipes.inodes()
    os.close(pipes.ended)
    pipes.ended = -1
    lock = open_log(str(folder / "pid"))
    try:
        pid = spawn(
            ("/bin/sh", "-c", "echo said; exit 3"),
            env={"PATH": path},
            folder=str(folder),
            workdir=str(folder),
            lock_fd=lock,
            ends=ends,
            cgroups=(),
        )
    finally:
        os.close(lock)
        ends.close()
        pipes.close()
    return pid, inodes


def test_a_shim_that_nobody_releases_ends_by_itself(tmp_path: Path) -> None:
    (tmp_path / "sleep").symlink_to("/bin/true")  # so that its seconds pass at once
    pid, _ = ended_without_executor(tmp_path, str(tmp_path))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


async def test_a_shim_waits_for_the_next_executor_with_its_output(tmp_path: Path) -> None:
    pid, inodes = ended_without_executor(tmp_path, os.environ["PATH"])
    await until((tmp_path / "exit").exists)
    pipes = find_pipes(pid, inodes)  # of a process that lives
    assert pipes is not None
    assert os.read(pipes.output, 100) == b"said\n"
    pipes.let_go()
    assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1]) == 3
    pipes.close()


def test_pipes_are_found_while_the_shell_moves_its_descriptors(tmp_path: Path) -> None:
    """Its stdout is the file for an instant: opened then, it is no pipe, and `epoll` refuses it."""
    pipes, ends = make_pipes()
    script = f"while :; do echo x >{tmp_path}/file; done"
    passed = (ends.output, ends.release, ends.ended)
    shell = subprocess.Popen(("sh", "-c", script), stdout=ends.write, pass_fds=passed)
    try:
        inodes = pipes.inodes()
        for _ in range(3000):
            found = find_pipes(shell.pid, inodes)
            assert found is not None
            assert found.inodes() == inodes
            found.close()
    finally:
        shell.kill()
        shell.wait()
        ends.close()
        pipes.close()
