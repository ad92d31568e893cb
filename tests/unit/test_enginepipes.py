"""The engine's pipes of a container: what the engine did not read is still there when the container has ended."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from weftd.executor.runtime.docker import enginepipes
from weftd.executor.runtime.docker.enginepipes import EnginePipes

CONTAINER = "c" * 64
# Has the pipes open as the process beside a container has them, and starts the container: a process that writes.
SHIM = """
import os, subprocess, sys
out, errors = (os.open(f"{sys.argv[1]}/{name}", os.O_RDWR) for name in ("init-stdout", "init-stderr"))
job = subprocess.Popen(["sh", "-c", "read line; echo out; echo error >&2; exit 3"], stdout=out, stderr=errors, stdin=0)
print(job.pid, flush=True)
job.wait()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / CONTAINER
    folder.mkdir()
    for name in enginepipes.NAMES:
        os.mkfifo(folder / name)
    return folder


@pytest.fixture
def shim(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", SHIM, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def first_process(shim: "subprocess.Popen[str]") -> int:
    assert shim.stdout is not None
    return int(shim.stdout.readline())


def end(shim: "subprocess.Popen[str]") -> None:
    assert shim.stdin is not None
    shim.stdin.write("go\n")
    shim.stdin.close()
    shim.wait(10)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="another process's open files are seen on Linux only")
def test_what_nobody_read_outlives_its_writers(shim: "subprocess.Popen[str]") -> None:
    pipes = EnginePipes()
    pipes.hold(first_process(shim), CONTAINER)
    end(shim)
    assert pipes.rest() == b"out\nerror\n"
    assert pipes.rest() == b"out\nerror\n"  # after a full disk it is asked again


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="another process's open files are seen on Linux only")
def test_pipes_of_another_container_are_not_held(shim: "subprocess.Popen[str]") -> None:
    pipes = EnginePipes()
    pipes.hold(first_process(shim), "d" * 64)
    end(shim)
    assert pipes.rest() == b""


def test_a_writer_that_stays_is_waited_for_only_so_long(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enginepipes, "FOLDER", str(tmp_path))
    monkeypatch.setattr(enginepipes, "END_SECONDS_MAX", 0.2)
    pipes = EnginePipes()
    pipes.hold(0, CONTAINER)
    writer = os.open(folder / "init-stdout", os.O_WRONLY)
    os.write(writer, b"half a line")
    began = time.monotonic()
    assert pipes.rest() == b"half a line"
    assert time.monotonic() - began < 5
    os.close(writer)


def test_what_is_no_pipe_is_not_held(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enginepipes, "FOLDER", str(tmp_path))
    for name in enginepipes.NAMES:
        (folder / name).unlink()
        (folder / name).write_bytes(b"text")
    pipes = EnginePipes()
    pipes.hold(0, CONTAINER)
    assert pipes.rest() == b""
