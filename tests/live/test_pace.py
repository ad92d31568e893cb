"""The pace of real jobs, told by file, by datagram and on their output, as it is heard on a real bus."""

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.control_plane import ControlPlane
from tests.support.executors import executor
from tests.support.nats_server import NatsServer
from tests.support.runs import order, until
from weft.messages.nodes import ProgressSeen, RunProgressed
from weftd.executor.thinking.telling import AGAIN_SECONDS

STEPS_RATE = 10.0
TRAINING = """
import contextlib, os, socket, sys, time
how, step, began = sys.argv[1], 0, time.monotonic()
telling = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
while True:
    step += 1
    line = f"step={step} samples={step * 32} loss=nan t_compute=0.08"
    if how == "file":
        open(os.environ["WEFT_PROGRESS"], "a").write(line + "\\n")
    elif how == "datagram":
        with contextlib.suppress(OSError):  # its socket is there from the node's first look at it
            telling.sendto(line.encode(), os.environ["WEFT_PROGRESS_SOCKET"])
    else:
        print("training:", step, flush=True)
    time.sleep(max(0.0, began + step / 10 - time.monotonic()))
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A home whose sockets have names that are not too long for one."""
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        yield Path(folder) / "home"


async def test_the_pace_of_jobs_is_heard_again_and_again_however_they_tell_it(
    server: NatsServer, control: ControlPlane, short: Path
) -> None:
    heard: dict[str, list[RunProgressed]] = {"file": [], "datagram": [], "output": []}
    loop = asyncio.get_running_loop()
    moments: list[float] = []

    async def hear(seen: ProgressSeen) -> None:
        moments.append(loop.time())
        for run in seen.runs:
            heard[run.job_id].append(run)

    await control.bus.subscribe(ProgressSeen, hear)
    async with executor(server, short):
        await control.want(
            *(
                order(
                    how,
                    command=(sys.executable, "-c", TRAINING, how),
                    progress_pattern=r"training: (?P<step>\d+)" if how == "output" else None,
                )
                for how in heard
            )
        )
        await until(lambda: all(any(run.pace for run in runs) for runs in heard.values()))
        await asyncio.sleep(6.0)
        await control.want()
    paces = {how: runs[-1].pace for how, runs in heard.items()}
    for pace in paces.values():
        assert pace is not None
        assert pace.steps_rate == pytest.approx(STEPS_RATE, rel=0.15)
        assert pace.steps > 20
    assert [pace and pace.samples_rate is not None for pace in paces.values()] == [True, True, False]
    assert [pace and pace.phases for pace in paces.values()] == [{"t_compute": 0.08}, {"t_compute": 0.08}, {}]
    assert paces["output"] is not None
    assert paces["output"].step_seconds == pytest.approx(1 / STEPS_RATE, rel=0.15)
    assert heard["file"][-1].disbelieved > 20
    assert "loss" not in heard["file"][-1].progress
    gaps = [late - early for early, late in pairwise(moments)]
    assert 0.8 < sorted(gaps)[len(gaps) // 2] < AGAIN_SECONDS
