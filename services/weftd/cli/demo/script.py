"""The steps of the demo, in order; every wait ends at the latest when the demo's time is up."""

import asyncio
from contextlib import suppress
from pathlib import Path

from weft.client import Client
from weft.domain.job import FINAL, JobState
from weft.domain.spec import JobSpec
from weft.messages.http import JobView
from weftd.cli.demo import parts
from weftd.cli.demo.board import LOOK_SECONDS, Board
from weftd.cli.demo.checks import WAITS_FOR_ROOM, Evidence
from weftd.cli.demo.serving import serve
from weftd.cli.demo.systems import avoid, feed, share

UNDER_WAY = 0.05  # the part of its steps after which preempting the trainer would lose work
BOTH_BUSY = 4  # seconds that the two jobs have shared their GPU before it is divided anew
CATCH_UP_SECONDS_MAX = 5.0  # the gateway explains from a picture that is up to a second old


async def play(client: Client, board: Board, *, token: str, nodes: Path) -> dict[str, Evidence]:
    """Submit the jobs, preempt, cancel and requeue them, and return the evidence of each, by name. `nodes`: the folder
    of the executors' homes."""
    watching = asyncio.create_task(board.watch())
    playing = asyncio.create_task(_play(client, board, token, nodes))
    try:
        await asyncio.wait({watching, playing}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        await playing
    finally:
        watching.cancel()
        playing.cancel()
    await board.look()
    return {name: await _evidence(client, board, job) for name, job in board.jobs.items()}


async def _play(client: Client, board: Board, token: str, nodes: Path) -> None:
    await asyncio.gather(feed(client, board), share(client, board))
    await _submit(client, parts.trainer(), parts.gang(), parts.flaky(), parts.doomed())
    for name in ("trainer", "gang", "doomed"):
        await board.until(name, lambda job: job.state is JobState.RUNNING or job.state.final)
    await _submit(client, parts.patient())
    await _explain(client, board, "patient")
    await board.until("trainer", lambda job: _part_done(job) >= UNDER_WAY or job.state.final)
    await _submit(client, parts.urgent())
    await board.until("urgent", lambda job: job.state is JobState.RUNNING or job.state.final)
    await client.cancel("doomed")
    board.tell("doomed", "asked to cancel")
    await board.until("patient", lambda job: job.state is JobState.RUNNING or job.state.final)
    await _submit(client, parts.elastic())
    # By its own count: what it is given and gives back at once, its rank 0 would never see.
    await board.until("elastic", lambda job: job.progress.get("members") == parts.ELASTIC_RANKS or job.state.final)
    board.tell("elastic", f"has grown to {parts.ELASTIC_RANKS} ranks")
    await _submit(client, parts.guest())
    for name in ("elastic", "guest"):
        await board.until_state(name, *FINAL)
    await _submit(client, parts.major(), parts.minor())
    await asyncio.gather(_divide(client, board), serve(client, board, token))
    await avoid(client, board, nodes)
    for name in list(board.jobs):
        await board.until_state(name, *FINAL)


async def _divide(client: Client, board: Board) -> None:
    """Change the shares of `major` and `minor` of their GPU while both run."""
    for name in ("major", "minor"):
        await board.until(name, lambda job: job.progress.get("step", 0.0) >= BOTH_BUSY or job.state.final)
    await _share(client, board, "major", parts.MINOR)
    await _share(client, board, "minor", parts.MAJOR)


async def _submit(client: Client, *specs: JobSpec) -> None:
    for spec in specs:
        await client.submit(spec)


async def _explain(client: Client, board: Board, name: str) -> None:
    """Ask why it waits, once the scheduler has looked at it."""
    job = await board.until(name, lambda job: job.waiting_for is not None or job.state is not JobState.QUEUED)
    with suppress(TimeoutError):
        async with asyncio.timeout(CATCH_UP_SECONDS_MAX):
            explained = await client.explain(job.id)
            while explained.state is JobState.QUEUED and explained.code not in WAITS_FOR_ROOM:
                await asyncio.sleep(LOOK_SECONDS)
                explained = await client.explain(job.id)
            board.explained[name] = explained
            held = ", ".join(f"{holder.name} ({holder.gpus:g})" for holder in explained.holders)
            board.tell(name, f"explained: {explained.sentence}{f'; held by {held}' if held else ''}")


async def _evidence(client: Client, board: Board, job: JobView) -> Evidence:
    ranks = range(1 if job.name in parts.ANY_RANKS else job.replicas)
    logs = [await client.read_log(job.id, rank=rank) for rank in ranks] if job.started_at else []
    return Evidence(
        job=job,
        story=await client.story(job.id),
        logs=tuple(log.decode(errors="replace") for log in logs),
        explained=board.explained.get(job.name),
        burst=board.burst if job.name == "model" else None,
    )


async def _share(client: Client, board: Board, name: str, request: float) -> None:
    """Ask for another share of its GPU, and wait until it has it."""
    await client.share(name, request=request)
    board.tell(name, f"asked to have {request:g} of its GPU from now on")
    await board.until(name, lambda job: job.gpus == request or job.state.final)


def _part_done(job: JobView) -> float:
    return job.progress.get("step", 0.0) / job.progress.get("steps", 1.0)
