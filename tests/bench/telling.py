"""A job that tells a million lines of progress a second, by file, by datagram or on its output: what reading takes."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.figures import Figures, milliseconds
from weft.messages.nodes import RunState
from weftd.executor.files.home import Home
from weftd.executor.logs.progress import ProgressReader
from weftd.executor.runs import Run, RunKey
from weftd.executor.service import PROGRESS_SECONDS

SECONDS = 10.0
LOUD, QUIET = RunKey("loud", 1, 0), RunKey("quiet", 1, 0)
FILE = """
import os, sys, time
file, step, began = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 0, time.monotonic()
while True:
    os.write(file, b"".join(b"step=%d loss=0.5 t_compute=0.001\\n" % number for number in range(step, step + 10000)))
    step += 10000
    if os.fstat(file).st_size > 1 << 28:
        os.ftruncate(file, 0)
    time.sleep(max(0.0, began + step / 1e6 - time.monotonic()))
"""
SOCKET = """
import socket, sys
telling, step = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), 0
telling.setblocking(False)
telling.connect(sys.argv[1])
while True:
    step += 1
    try:
        telling.send(b"step=%d loss=0.5 t_compute=0.001" % step)
    except BlockingIOError:
        pass
"""
PATTERN = r"step=(?P<step>\d+) loss=(?P<loss>[\d.]+)"


async def _one(home: Path, how: str, figures: Figures) -> None:
    places = Home(home / how)
    runs = [Run(key=key, state=RunState.RUNNING, started_at=1.0) for key in (LOUD, QUIET)]
    for run in runs:
        os.mkdir(places.run(run.key))
    reader = ProgressReader(places)
    reader.patterns = {LOUD: PATTERN} if how == "output" else {}
    await reader.look(runs)
    where = {"file": places.progress, "datagrams": places.progress_socket, "output": places.log}[how](LOUD)
    loud = _begin(SOCKET if how == "datagrams" else FILE, where)
    took: list[float] = []
    steps = 0.0
    try:
        worked, began = time.process_time(), time.monotonic()
        while (now := time.monotonic()) < began + SECONDS:
            with open(places.progress(QUIET), "a") as file:  # noqa: ASYNC230 - a line
                file.write(f"step={len(took)}\n")
            told = await reader.look(runs)
            took.append(time.monotonic() - now)
            if told[QUIET].progress["step"] != len(took) - 1:
                raise RuntimeError("the quiet run waited for the loud one")
            if LOUD in told:
                steps = told[LOUD].progress["step"]
            await asyncio.sleep(PROGRESS_SECONDS)
        cpu = (time.process_time() - worked) / (time.monotonic() - began)
    finally:
        loud.kill()
        loud.wait()
        await reader.close()
    figures.add(
        f"progress of a job that tells as much as it can, by {how}: CPU of its reader",
        f"{100 * cpu:.1f} % of a core; a look, in which another's is read: {milliseconds(took)}; step {steps:.0f}",
    )


def _begin(program: str, where: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-S", "-c", program, where])


async def measure(home: Path, figures: Figures) -> None:
    for how in ("file", "datagrams", "output"):
        await _one(home, how, figures)
