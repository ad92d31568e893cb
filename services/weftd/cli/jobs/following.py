"""Following a job until it is over: its log on stdout, its events on stderr."""

import asyncio
import sys
from contextlib import aclosing

from weft.client import Client, Refused
from weft.client.failure import last_words
from weft.domain.job import FINAL, JobState
from weft.messages.http import JobView, Submitted
from weftd.cli import page
from weftd.cli.jobs.logs import Writer, gap_text, terminal_text
from weftd.cli.rendering.failure import hint
from weftd.cli.rendering.jobs import ended_line, last_words_text
from weftd.cli.rendering.story import event_line, happened

FOLLOWED_RANK = 0

_FINAL_EVENTS = frozenset(state.value for state in FINAL)


async def follow(client: Client, submitted: Submitted) -> int:
    """Follow a job; returns 0 if it succeeds, else its exit status or 1. After Ctrl-C the job goes on."""
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_tell(client, submitted.id))
            tasks.create_task(_copy_log(client, submitted.id))
    except asyncio.CancelledError:
        remark = (
            f"{submitted.name} goes on: `weft logs -f {submitted.id}` follows it, `weft cancel {submitted.id}` ends it"
        )
        page.remark(f"\n{remark}")
        raise
    job = await client.job(submitted.id)
    screen = page.console(sys.stderr)
    words = await last_words(client, job)
    if words is not None and words.rank != FOLLOWED_RANK:  # the log of rank 0 has been shown
        screen.print(last_words_text(words))
    screen.print(ended_line(job))
    if told := hint(job, words):
        screen.print(told, style="dim")
    return exit_status_of(job)


def status_of(job: JobView) -> int:
    return 0 if job.state is JobState.SUCCEEDED else 1


def exit_status_of(job: JobView) -> int:
    """The job's own status, if it failed with one that a process can have."""
    failed = job.state is JobState.FAILED and job.exit_code is not None and 0 < job.exit_code < 256
    return job.exit_code if failed and job.exit_code is not None else status_of(job)


async def _tell(client: Client, job_id: str) -> None:
    """Print its events, except its end, which is printed after its whole log."""
    screen = page.console(sys.stderr)
    async with aclosing(client.follow_events(job=job_id)) as events:
        async for event in events:
            if happened(event) not in _FINAL_EVENTS:
                screen.print(event_line(event, page.context(sys.stderr), named=False))


async def _copy_log(client: Client, job_id: str) -> None:
    writer = Writer(page.write, screen=terminal_text())
    try:
        async with aclosing(client.follow_log(job_id, gap=lambda gap: page.remark(gap_text(gap)))) as chunks:
            async for chunk in chunks:
                writer.write(chunk)
    except Refused as error:
        if error.status != 404 or error.field != "epoch":  # it never started: its end says why
            raise
    writer.close()
