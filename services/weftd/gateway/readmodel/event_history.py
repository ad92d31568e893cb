"""A job's event history, page by page: a whole history may be too large for a gateway's memory."""

from collections.abc import AsyncGenerator, Sequence

from weft.domain.job import Job
from weft.messages.events import Event
from weft.store import EVENTS_BYTES_MAX, GatewayStore, is_full
from weft.store.accounts import Moment
from weftd.gateway.readmodel.past import folded, job_then

PAGE = 1000


async def story_pages(
    store: GatewayStore,
    job_id: str,
    *,
    after: str = "",
    events: Sequence[str] = (),
    bytes_max: int = EVENTS_BYTES_MAX,
) -> AsyncGenerator[list[Event], None]:
    """A job's events after the cursor `after`, in order; with `events`, only events with these names."""
    while True:
        page = await store.story(job_id, after=after, events=events, limit=PAGE, bytes_max=bytes_max)
        if page:
            after = page[-1].cursor
            yield page
        if not is_full(page, PAGE, bytes_max):
            return


async def job_at(store: GatewayStore, job: Job, moment: Moment) -> tuple[Job, Event] | None:
    """A job as it was at a moment, and its last event until then; None if it had not been submitted."""
    then, found = job_then(job, ()), None
    async for page in story_pages(store, job.id):
        for event in page:
            then = folded(then, event)
            if moment.holds(event):
                found = then, event
    return found
