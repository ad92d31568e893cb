"""`torchrun` under the process runtime: a job that ranks join and leave while it trains, and the weights at its end.

Needs PyTorch, which is none of our dependencies: a `torchrun` on the path, or the one that WEFT_TORCHRUN names.
"""

import asyncio
import json
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from tests.support.rig import Rig, opened
from tests.support.runs import WAIT_SECONDS_MAX, in_state, order, whole_log
from weft.messages.nodes import Member, Members, RunState, StartRun
from weftd.executor.runs import Run, RunKey

pytestmark = pytest.mark.timeout(280)  # PyTorch takes seconds to start, and starts many times

logger = logging.getLogger(__name__)

TORCHRUN = os.environ.get("WEFT_TORCHRUN") or shutil.which("torchrun") or ""
CHANGE_SECONDS_MAX = 90.0

# Full batches in equal shards, in double precision: the weights after n steps are the same at every size.
TRAINING = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder = Path(os.environ["WEFT_CHECKPOINT_DIR"])
kept, finish = folder / "kept.pt", folder / "finish"
alone = len(sys.argv) > 1
if not alone:
    dist.init_process_group("gloo")
rank, size = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
torch.manual_seed(1)
torch.set_num_threads(1)
inputs, targets = torch.randn(12, 4, dtype=torch.double), torch.randn(12, 1, dtype=torch.double)
inner = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
model = inner if alone else DistributedDataParallel(inner)
optimizer = torch.optim.SGD(inner.parameters(), lr=0.05, momentum=0.9)
step = 0
if kept.exists() and not alone:
    state = torch.load(kept)
    inner.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
while True:
    over = torch.tensor([float(step >= int(sys.argv[1]) if alone else rank == 0 and finish.exists())])
    if not alone:
        dist.all_reduce(over)
    if over.item():
        break
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs[rank::size]), targets[rank::size]).backward()
    optimizer.step()
    step += 1
    if not alone:
        if rank == 0:
            torch.save({"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{kept}.new")
            os.replace(f"{kept}.new", kept)
        print(f"step={step} size={size}", flush=True)
        time.sleep(0.02)
weights = " ".join(f"{value:.12e}" for part in inner.parameters() for value in part.flatten().tolist())
print(f"finished step={step} weights={weights}", flush=True)
if not alone:
    dist.barrier()
    dist.destroy_process_group()
"""


class Finished(Struct, frozen=True):
    steps: int
    weights: tuple[float, ...]


def finished(log: str) -> Finished:
    found = re.findall(r"finished step=(\d+) weights=(.+)", log)[-1]
    return Finished(int(found[0]), tuple(float(value) for value in found[1].split()))


def members_in(path: Path) -> tuple[int, list[int]]:
    """How often ranks joined or left, and the ranks."""
    told = json.loads(path.read_text())
    return told["changes"], [member["rank"] for member in told["ranks"]]


class Job:
    """A live job of one worker role; the test says which ranks it has."""

    def __init__(self, rig: Rig, script: Path, port: int) -> None:
        self._rig = rig
        self._order = order(
            "job-torch",
            command=(TORCHRUN, "--nnodes=1:3", "--rdzv-backend=c10d", str(script)),
            env={"OMP_NUM_THREADS": "1"},
            master_port=port,
            grace=30.0,
            memory=4 << 30,
        )
        self._changes = -1
        self.ranks: tuple[int, ...] = ()

    def key(self, rank: int) -> RunKey:
        return RunKey(self._order.job_id, self._order.epoch, rank)

    async def become(self, *ranks: int) -> float:
        """Give it these ranks, as a node's executor does. The seconds until it trains with all of them."""
        begun = time.monotonic()
        before, self.ranks = self.ranks, ranks
        self._changes += 1
        for rank in set(before) - set(ranks):
            await self._rig.runtime.signal(self.key(rank), kill=False)
        for rank in set(ranks) - set(before):
            await self._rig.runtime.start(self._run(rank))
        for rank in set(ranks) & set(before):
            assert await self._rig.runtime.show_members(self._run(rank), signal_due=False) == ""
        for rank in ranks:
            await self._trains(rank, len(ranks))
        for rank in set(before) - set(ranks):
            await in_state(self._rig.runtime, self.key(rank), RunState.EXITED)
        return time.monotonic() - begun

    async def end(self, rank: int) -> Run:
        return await in_state(self._rig.runtime, self.key(rank), RunState.EXITED)

    async def log(self, rank: int) -> str:
        return (await whole_log(self._rig.runtime, self.key(rank))).decode()

    def _run(self, rank: int) -> StartRun:
        members = Members(
            changes=self._changes,
            ranks=tuple(
                Member(role="worker", rank=rank, address="127.0.0.1", port=self._order.master_port + rank)
                for rank in self.ranks
            ),
            least=1,
            most=3,
        )
        return replace(self._order, rank=rank, role_rank=rank, world_size=len(self.ranks), members=members)

    async def _trains(self, rank: int, size: int) -> None:
        """Wait for new steps at this size."""
        text = ""
        try:
            async with asyncio.timeout(CHANGE_SECONDS_MAX):
                while not text.rstrip().endswith(f"size={size}"):
                    await asyncio.sleep(0.05)
                    chunk = await self._rig.runtime.read_log(self.key(rank), offset=0, limit=1 << 20)
                    text = chunk.data.decode()
        except TimeoutError:
            raise AssertionError(f"rank {rank} does not train with {size} ranks:\n{text[-3000:]}") from None


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    if not TORCHRUN:
        pytest.skip("PyTorch is not here: no torchrun on the path, and WEFT_TORCHRUN names none")
    async with opened("process", tmp_path) as built:
        yield built


async def test_a_job_of_torchrun_grows_and_shrinks_while_it_trains(
    rig: Rig, tmp_path: Path, unused_tcp_port: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    job = Job(rig, script, unused_tcp_port)
    seconds = {"start": await job.become(0)}
    seconds["grow to 3"] = await job.become(0, 1, 2)
    seconds["shrink to 2"] = await job.become(0, 2)
    seconds["grow to 3 again"] = await job.become(0, 2, 3)
    checkpoints = Path(rig.node.checkpoints) / "job-torch"
    assert members_in(tmp_path / "home" / "runs" / "job-torch-1-0" / "members.json") == (3, [0, 2, 3])
    (checkpoints / "finish").touch()
    ends = [await job.end(rank) for rank in job.ranks]
    logs = [await job.log(rank) for rank in job.ranks]
    assert [run.exit_code for run in ends] == [0, 0, 0], logs
    results = [finished(log) for log in logs]
    assert len({(result.steps, result.weights) for result in results}) == 1
    steps = [int(number) for number in re.findall(r"^step=(\d+)", logs[0], re.MULTILINE)]
    assert steps == sorted(steps)
    assert len(set(steps)) == steps[-1] == results[0].steps  # No step is missing, though some may have been repeated.
    reference = await _reference(script, results[0].steps, checkpoints)
    assert reference.weights == pytest.approx(results[0].weights, rel=1e-9)
    logger.info("%d steps, %d of them twice; seconds: %s", results[0].steps, len(steps) - len(set(steps)), seconds)


async def _reference(script: Path, steps: int, checkpoints: Path) -> Finished:
    """As many steps without an interruption, in one process."""
    python = str(Path(TORCHRUN).parent / "python")
    environ = {**os.environ, "WEFT_CHECKPOINT_DIR": str(checkpoints)}
    done = await asyncio.to_thread(
        subprocess.run,
        [python, str(script), str(steps)],
        env=environ,
        capture_output=True,
        check=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
    )
    return finished(done.stdout)
