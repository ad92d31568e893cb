"""The clauses of docs/contract.md that real frameworks hold. A new clause is one function here."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

from tests.bench.contract.stage import PROGRAMS, BrokenError, Stage
from weft.domain.job import JobState
from weftd.cli.migration.slurm import from_slurm

Clause = Callable[[Stage], Awaitable[None]]
CLAUSES: dict[str, Clause] = {}
QUICK: set[str] = set()


def clause(name: str, *, quick: bool = True) -> Callable[[Clause], Clause]:
    """Register a clause: it returns if it holds, and raises BrokenError if it does not. `quick`: also with --quick."""

    def register(held: Clause) -> Clause:
        CLAUSES[name] = held
        QUICK.update({name} if quick else ())
        return held

    return register


def check_ranks(log: str, world: int) -> None:
    """Each rank of `world` has reported itself once, all with the same weights."""
    found = re.findall(r"rank (\d+) of (\d+) weights (\S+)", log)
    ranks = sorted(int(rank) for rank, _, _ in found)
    if ranks != list(range(world)) or {size for _, size, _ in found} != {str(world)}:
        raise BrokenError(
            f"expected each of {world} ranks once, found {[f'{rank} of {size}' for rank, size, _ in found]}"
        )
    if len({weights for _, _, weights in found}) != 1:
        raise BrokenError(f"the ranks disagree: {found}")


async def _trains(stage: Stage, name: str, *program: str, world: int, replicas: int = 1, **fields: Any) -> None:
    job = await stage.submit(name, stage.runs(*program), replicas=replicas, cpus=2.0, **fields)
    check_ranks(await stage.succeeds(job.id, replicas=replicas), world)


# one replica is one process


@clause("lightning-one-replica-two-devices")
async def _(stage: Stage) -> None:
    await _trains(stage, "lightning-1x2", "lightning_train.py", "--devices", "2", gpus=2, world=2)


@clause("trainer-one-replica")
async def _(stage: Stage) -> None:
    await _trains(stage, "trainer-1", "hf_train.py", gpus=2, world=1)


@clause("accelerate-device-map")
async def _(stage: Stage) -> None:
    await _trains(stage, "device-map", "device_map.py", gpus=2, world=1)


@clause("torchrun-one-replica-two-workers")
async def _(stage: Stage) -> None:
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "ddp.py")
    await _trains(stage, "torchrun-1x2", *words, gpus=2, world=2)


@clause("torchrun-one-replica-plain")
async def _(stage: Stage) -> None:
    await _trains(stage, "torchrun-1", "-m", "torch.distributed.run", "ddp.py", gpus=1, world=1)


# several replicas


@clause("lightning-two-replicas-one-device")
async def _(stage: Stage) -> None:
    await _trains(stage, "lightning-2x1", "lightning_train.py", "--nodes", "2", gpus=1, replicas=2, world=2)


@clause("lightning-two-replicas-two-devices", quick=False)
async def _(stage: Stage) -> None:
    words = ("lightning_train.py", "--devices", "2", "--nodes", "2")
    await _trains(stage, "lightning-2x2", *words, gpus=2, replicas=2, world=4)


@clause("trainer-two-replicas")
async def _(stage: Stage) -> None:
    await _trains(stage, "trainer-2", "hf_train.py", gpus=1, replicas=2, world=2)


@clause("torchrun-two-replicas-two-workers")
async def _(stage: Stage) -> None:
    await _trains(stage, "torchrun-2x2", "-m", "torch.distributed.run", "ddp.py", gpus=2, replicas=2, world=4)


@clause("jax-two-replicas")
async def _(stage: Stage) -> None:
    await _trains(stage, "jax-2", "jax_gather.py", gpus=1, replicas=2, world=2)


# the user's values, threads, streams


@clause("the-users-value-wins")
async def _(stage: Stage) -> None:
    env = {"RANK": "7", "OMP_NUM_THREADS": "3", "WEFT_RANK": "7"}
    job = await stage.submit("own-values", ["env"], env=env, replicas=2)
    lines = set((await stage.succeeds(job.id)).splitlines())
    if not {"RANK=7", "OMP_NUM_THREADS=3", "WEFT_RANK=0", "NODE_RANK=0"} <= lines or "MKL_NUM_THREADS=2" in lines:
        raise BrokenError(f"its environment is {sorted(lines)}")
    if not any(note.startswith("RANK is set by the job") for note in job.notes):
        raise BrokenError(f"the submission notes {job.notes}")


@clause("one-replica-finds-no-rank")
async def _(stage: Stage) -> None:
    job = await stage.submit("alone", ["env"], gpus=2)
    names = {line.partition("=")[0] for line in (await stage.succeeds(job.id)).splitlines()}
    wrong = [
        each for each in names if re.fullmatch(r"(LOCAL_|NODE_|GROUP_)?RANK|WORLD_SIZE|MASTER_.*|PET_.*|TF_.*", each)
    ]
    if wrong:
        raise BrokenError(f"it finds {sorted(wrong)}")


@clause("threads-follow-the-cpus")
async def _(stage: Stage) -> None:
    for cpus, threads in ((1.0, 1), (1.5, 2)):
        job = await stage.submit(f"threads-{threads}", stage.runs("threads.py"), cpus=cpus)
        if f"threads {threads}\n" not in (log := await stage.succeeds(job.id)):
            raise BrokenError(f"with {cpus:g} CPUs: {log[-200:]}")


@clause("standard-input-is-empty")
async def _(stage: Stage) -> None:
    job = await stage.submit("stdin", ["sh", "-c", 'read line; echo "status $?"'])
    if "status 1" not in (log := await stage.succeeds(job.id)):
        raise BrokenError(log[-200:])


@clause("a-signal-is-128-more")
async def _(stage: Stage) -> None:
    job = await stage.submit("signal", ["sh", "-c", "kill -SEGV $$"])
    view = await stage.ended(job.id)
    if (view.state, view.exit_code) != (JobState.FAILED, 139):
        raise BrokenError(f"it {view.state} with {view.exit_code}")


# stopping


def _check_saved(log: str) -> None:
    if not re.search(r"saved (step|rank) \d+", log):
        raise BrokenError(f"nothing is saved: {' / '.join(log.strip().splitlines()[-4:])[-500:]}")


@clause("a-data-loader-saves")
async def _(stage: Stage) -> None:
    job = await stage.submit("loader", stage.runs("loader.py"), grace="20s")
    await stage.says(job.id, "steps ")
    _check_saved(await stage.cancel(job.id))


@clause("a-wrapper-saves")
async def _(stage: Stage) -> None:
    script = f"{stage.python} {PROGRAMS / 'loader.py'} --save 4; echo rc=$?"
    job = await stage.submit("wrapper", ["sh", "-c", script], grace="20s")
    await stage.says(job.id, "steps ")
    _check_saved(await stage.cancel(job.id))


@clause("torchrun-saves", quick=False)
async def _(stage: Stage) -> None:
    """A worker that saves for longer than torchrun's own 30 s."""
    words = ("-m", "torch.distributed.run", "ddp.py", "--save", "34")
    job = await stage.submit("torchrun-saves", stage.runs(*words), grace="50s")
    await stage.says(job.id, "steps")
    _check_saved(await stage.cancel(job.id))


@clause("a-displaced-job-resumes")
async def _(stage: Stage) -> None:
    """The two need more GPUs than there are, even if no other clause holds any. The first runs for the minimum of a
    start with checkpoints, a minute, and has more to do then."""
    fields = {"grace": "20s", "priority": -1, "checkpoints": {"on_stop": True}}
    job = await stage.submit("displaced", stage.runs("loader.py", "--steps", "9000"), gpus=8, **fields)
    await stage.says(job.id, "steps ")
    urgent = await stage.submit("urgent", ["sleep", "1"], gpus=8, priority=1)
    await stage.succeeds(urgent.id)
    log = await stage.succeeds(job.id)
    if not re.search(r"begins at step [1-9]", log):
        raise BrokenError(f"its second try does not begin at a saved step: {log[:200]}")


# scripts of Slurm


async def _translated(stage: Stage, name: str, program: str) -> None:
    script = f"#!/bin/bash\n#SBATCH --job-name={name}\n#SBATCH --ntasks=2\n#SBATCH --gpus-per-task=1\nsrun {program}\n"
    command = from_slurm(script, path=f"{name}.sh", folder="/").spec["command"]
    job = await stage.submit(name, command, replicas=2, gpus=1)
    check_ranks(await stage.succeeds(job.id, replicas=2), 2)


@clause("slurm-lightning")
async def _(stage: Stage) -> None:
    await _translated(stage, "slurm-lightning", " ".join(stage.runs("lightning_train.py", "--nodes", "2")))


@clause("slurm-jax-detects")
async def _(stage: Stage) -> None:
    await _translated(stage, "slurm-jax", " ".join(stage.runs("jax_gather.py", "--detect")))
