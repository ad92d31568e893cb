"""The scene of the service: a burst comes, replicas grow on GPUs that training lends, and go again."""

import asyncio
from contextlib import suppress

from weft.client import Client
from weft.domain.job import FINAL
from weft.domain.text import plural
from weft.messages.http import JobView
from weftd.cli.demo import parts
from weftd.cli.demo.board import LOOK_SECONDS, Board
from weftd.cli.demo.burst import send
from weftd.cli.formatting import number
from weftd.cli.rendering.services import latency_text

READY_SECONDS_MAX = 60.0
GROWN_SECONDS_MAX = 15.0  # the burst goes on no longer, even if the service has not grown
STEADY_SECONDS = 4.0  # that the burst goes on once the service has grown
SHRUNK_SECONDS_MAX = 25.0


async def serve(client: Client, board: Board, token: str) -> None:
    """Serve an emulated model while `lender` trains, and send a burst. Without a router, say so and leave it out.

    `token`: for the router, which the requests of the burst bring.
    """
    submitted = await client.submit(parts.model())
    view = await client.endpoints(submitted.id)
    if not view.url:
        board.left_out["model"] = board.left_out["lender"] = "this cluster has no router"
        board.tell("model", "left out: this cluster has no router (Caddy is not installed, or does not run here)")
        await client.cancel(submitted.id)
        return
    try:
        await board.until("model", lambda job: _ready(job) > 0 or job.state.final, seconds_max=READY_SECONDS_MAX)
    except TimeoutError:
        board.tell("model", f"was not ready within {READY_SECONDS_MAX:g} s; asked to end")
        await client.cancel(submitted.id)
        return
    await client.submit(parts.lender())
    await board.until("lender", lambda job: job.progress.get("members") == parts.LENDER_RANKS or job.state.final)
    await _burst(board, view.url, token)
    with suppress(TimeoutError):
        await board.until(
            "model", lambda job: _granted(job) < parts.MODEL_REPLICAS or job.state.final, seconds_max=SHRUNK_SECONDS_MAX
        )
    board.tell("model", f"{_granted(board.jobs['model'])} replicas again; asked to end")
    await client.cancel(submitted.id)
    await board.until_state("model", *FINAL)


async def _burst(board: Board, url: str, token: str) -> None:
    """Requests until the service has grown, and a little longer."""
    board.tell("model", f"a burst: {number(parts.BURST_RATE)} requests/s, of which one replica answers 20")
    grown: list[float] = []

    def over(seconds: float) -> bool:
        if not grown and _ready(board.jobs["model"]) >= parts.MODEL_REPLICAS:
            grown.append(seconds)
            board.tell("model", f"{parts.MODEL_REPLICAS} replicas are ready {seconds:.1f} s after the burst began")
        return seconds > (grown[0] + STEADY_SECONDS if grown else GROWN_SECONDS_MAX)

    sending = asyncio.create_task(send(f"{url}v1/generate", token, rate=parts.BURST_RATE, over=over, burst=board.burst))
    try:
        while not sending.done():
            board.borrowed = max(board.borrowed, _borrowed(board.jobs["model"]))
            await asyncio.wait({sending}, timeout=LOOK_SECONDS)
        await sending
    finally:
        sending.cancel()
    burst = board.burst
    took = f"half within {latency_text(burst.within(0.5))}, 95 % within {latency_text(burst.within(0.95))}"
    lent = f"; {plural(board.borrowed, 'GPU')} borrowed from lender" if board.borrowed else ""
    board.tell("model", f"the burst is over: {burst.answered} of {burst.sent} answered, {took}{lent}")


def _ready(job: JobView) -> int:
    return job.service.ready or 0 if job.service is not None else 0


def _granted(job: JobView) -> int:
    return job.service.granted if job.service is not None else 0


def _borrowed(job: JobView) -> float:
    return sum(loan.gpus for loan in job.service.loans) if job.service is not None else 0.0
