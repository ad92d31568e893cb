"""The pages of experiment trackers to which a run reports, found in its log."""

import asyncio
import re
from contextlib import aclosing

from msgspec import Struct

from weft.client.client import Client
from weft.client.errors import Refused, Unreachable
from weft.client.terminal import cleaned
from weft.messages.http import JobView

READ_BYTES = 64 << 10  # trackers print the page of their run at the beginning or at the end
PAGES_MAX = 4
_SECONDS_MAX = 2.0
_URL = r"(?P<url>https?://[!-~]{1,300})"
_LINES = {  # as the trackers print them
    "W&B": re.compile(rf"^wandb: .*\bView run\b.* at:? {_URL}$", re.MULTILINE),
    "MLflow": re.compile(rf"^\W*View run .+ at: {_URL}$", re.MULTILINE),
}


class TrackingPage(Struct, frozen=True, kw_only=True):
    """The page of one run at `tracker`. The job wrote the address: it may lead anywhere."""

    tracker: str
    url: str


async def tracking_pages(client: Client, job: JobView) -> tuple[TrackingPage, ...]:
    """The pages that rank 0 named in its newest try, if its node answers soon; at most `PAGES_MAX`."""
    if not job.started_at:
        return ()
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            begin = bytearray()
            async with aclosing(client.stream_log(job.id)) as chunks:
                async for chunk in chunks:
                    begin += chunk
                    if len(begin) >= READ_BYTES:
                        begin += b"\n" + await client.read_log(job.id, tail=READ_BYTES)
                        break
    except (Refused, Unreachable, TimeoutError):
        return ()
    return pages_in(bytes(begin))


def pages_in(log: bytes) -> tuple[TrackingPage, ...]:
    """The pages that a part of a log names, each once."""
    text = cleaned(log)
    found = {
        line["url"]: TrackingPage(tracker=tracker, url=line["url"])
        for tracker, form in _LINES.items()
        for line in form.finditer(text)
    }
    return tuple(found.values())[:PAGES_MAX]
