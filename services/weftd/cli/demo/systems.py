"""The scenes of what Weft does for jobs by itself: a slow GPU is avoided, a starved job gets more CPU, the GPUs are
shared by jobs that grow and shrink. All GPUs are emulated."""

import asyncio
from pathlib import Path

from weft.client import Client
from weft.domain.classes import JOB_CLASSES
from weft.domain.job import FINAL, CauseCode, JobEvent
from weft.emulation.slowdowns import slow_down
from weft.messages.http import GpuView, JobView
from weftd.cli.cluster.bench_gpu import spec_for
from weftd.cli.demo import parts
from weftd.cli.demo.board import LOOK_SECONDS, Board
from weftd.cli.demo.checks import of_kind, sentence_of

BENCHMARK_SECONDS = 0.4
KNOWN_SECONDS_MAX = 180.0  # a busy machine measures slowly
KNOWN = 1.2  # a score from which on the slow GPU counts as known
TUNED_SECONDS_MAX = 150.0
NOT_ENFORCED = "Weft cannot limit the CPU of jobs on this machine (no rights to control groups), so it tunes no job"


async def avoid(client: Client, board: Board, nodes: Path) -> None:
    """Make a GPU slow, measure all of its node, and show why the next job is where it is."""
    slow = (parts.SLOW_NODE, parts.SLOW_GPU)
    slow_down(nodes / parts.SLOW_NODE / "emulated", parts.SLOW_GPU, parts.SLOWDOWN)
    node = next(node for node in (await client.nodes()).nodes if node.id == parts.SLOW_NODE)
    board.tell(
        "picky", f"emulated GPU {slow[1]} of {slow[0]} is now {parts.SLOWDOWN:g} times slower; measuring its node"
    )
    again = [gpu for gpu in node.gpus if gpu.index == parts.SLOW_GPU]  # a surprise has to be confirmed
    for gpu in (*node.gpus, *again):
        await client.submit(spec_for(node, gpu, seconds=BENCHMARK_SECONDS))
    loop = asyncio.get_running_loop()
    until = loop.time() + KNOWN_SECONDS_MAX
    while not any(_score(gpu) > KNOWN for gpu in (await client.gpus(node=node.id)).gpus):
        if loop.time() > until:
            board.tell("picky", f"not shown: no GPU was found slow in {KNOWN_SECONDS_MAX:g} s; is this machine busy?")
            return
        await asyncio.sleep(LOOK_SECONDS)
    submitted = await client.submit(parts.picky())
    await board.until_state("picky", *FINAL)
    for placed in of_kind(await client.story(submitted.id), JobEvent.PLACED):
        board.tell("picky", f"placed: {sentence_of(placed.data.cause)}")


async def share(client: Client, board: Board) -> None:
    """Two jobs that grow and shrink share all GPUs; the first ends, and the other has them."""
    whole = parts.GPUS
    await client.submit(parts.alpha())
    await board.until("alpha", lambda job: _ranks(job) == whole or job.state.final)
    board.tell("alpha", f"asked for 2 GPUs, and has all {whole} (emulated) while nobody else needs them")
    await client.submit(parts.beta())
    beta = await board.until("beta", lambda job: _ranks(job) >= parts.BETA_LEAST or job.state.final)
    board.tell("beta", f"came, and they share: alpha has {_ranks(board.jobs['alpha']):g} GPUs, beta {_ranks(beta):g}")
    await board.until("alpha", lambda job: job.state.final)
    beta = await board.until("beta", lambda job: _ranks(job) == whole or job.state.final)
    board.tell("beta", f"alpha has ended: beta has {_ranks(beta):g} GPUs")
    for name in ("alpha", "beta"):
        await board.until_state(name, *FINAL)


async def feed(client: Client, board: Board) -> None:
    """A job that is short of CPU gets more, and the change is kept as the job became faster."""
    if any("cpus" in node.not_enforced for node in (await client.nodes()).nodes):
        board.left_out["starved"] = NOT_ENFORCED
        board.tell("starved", f"left out: {NOT_ENFORCED}")
        return
    job = await client.submit(parts.starved())
    board.tell("starved", f"asks for {parts.STARVED_CPUS:g} CPU cores, and could use a whole one")
    told = 0
    loop = asyncio.get_running_loop()
    until, kept = loop.time() + TUNED_SECONDS_MAX, False
    while not kept and loop.time() < until:
        changes = [event.data.cause for event in of_kind(await client.story(job.id), JobEvent.TUNED)]
        for cause in changes[told:]:
            board.tell("starved", sentence_of(cause))
        told = len(changes)
        kept = any(cause is not None and cause.code == CauseCode.KEPT for cause in changes)
        await asyncio.sleep(LOOK_SECONDS)
    await client.cancel(job.id)
    await board.until_state("starved", *FINAL)


def _score(gpu: GpuView) -> float:
    return next((score.score for score in gpu.scores if score.job_class == JOB_CLASSES[0]), 1.0)


def _ranks(job: JobView) -> float:
    """The number of ranks by the job's own count: it sees all changes."""
    return job.progress.get("members", 0.0)
