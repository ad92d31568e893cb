"""Staying with a job until it is over: its log on stdout, what happens to it on stderr."""

import asyncio
import sys
from contextlib import aclosing

from libs.client import Client
from libs.domain.job import FINAL, JobState
from libs.messages.http import JobView, Submitted
from services.cli import page
from services.cli.drawing.jobs import ended_line
from services.cli.drawing.story import event_line, happened
from services.cli.logs import gap_text

_FINAL_EVENTS = frozenset(state.value for state in FINAL)


async def follow(client: Client, submitted: Submitted) -> int:
    """0 if it succeeds, 1 if it does not. Ctrl-C leaves the job alone."""
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_tell(client, submitted.id))
            tasks.create_task(_copy_log(client, submitted.id))
    except asyncio.CancelledError:
        remark = (
            f"{submitted.name} goes on: `weft logs -f {submitted.id}` follows it, `weft cancel {submitted.id}` ends it"
        )
        print(f"\n{remark}", file=sys.stderr)
        raise
    job = await client.job(submitted.id)
    page.console(sys.stderr).print(ended_line(job))
    return status_of(job)


async def until_over(client: Client, job_id: str) -> JobView:
    """Its end, however often it is sent back to the queue before."""
    job = await client.job(job_id)
    while not job.state.final:
        async with aclosing(client.follow_events(job=job_id)) as events:
            async for _ in events:
                pass
        job = await client.job(job_id)
    return job


def status_of(job: JobView) -> int:
    return 0 if job.state is JobState.SUCCEEDED else 1


async def _tell(client: Client, job_id: str) -> None:
    """What happens to it, but for its end, which is told when all of its log is there."""
    screen = page.console(sys.stderr)
    async with aclosing(client.follow_events(job=job_id)) as events:
        async for event in events:
            if happened(event) not in _FINAL_EVENTS:
                screen.print(event_line(event, page.look(sys.stderr), named=False))


async def _copy_log(client: Client, job_id: str) -> None:
    async with aclosing(client.follow_log(job_id, gap=lambda gap: page.remark(gap_text(gap)))) as chunks:
        async for chunk in chunks:
            page.write(chunk)
