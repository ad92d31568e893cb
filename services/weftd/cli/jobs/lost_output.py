"""Output of a run that is not in its log, as the story of its job has it: `weft logs` says so beside the log."""

from collections.abc import Iterable

from weft.client import Client, RefusedError
from weft.domain.job import CauseCode
from weft.messages.http import EventView, JobView

EVENTS_MAX = 500
"""The newest events of a job in which a loss is looked for."""

NOTED = "weft.jobs.noted"


async def lost_output(
    client: Client, job: JobView, ranks: Iterable[int], *, role: str | None, epoch: int | None
) -> list[str]:
    """A sentence for each of these ranks whose output of `epoch`, or of any epoch, was dropped or waits for room.

    `job` is as it is after its log was read. With a `role`, the ranks count within it.
    """
    try:
        story = await client.story(job.id, limit=EVENTS_MAX)
    except RefusedError:  # The log was read, and that is what was asked for.
        return []
    of_role = [each.rank for each in job.placement.allocations if each.role == role] if job.placement else []
    wanted = {of_role[rank] for rank in ranks if rank < len(of_role)} if role is not None else set(ranks)
    return losses(story, job, wanted, epoch=epoch)


def losses(story: Iterable[EventView], job: JobView, ranks: set[int], *, epoch: int | None) -> list[str]:
    """One sentence for each rank and epoch: a loss, or that output waits, if the epoch still runs."""
    found: dict[tuple[int, int], str] = {}
    for event in story:
        cause, of_epoch = event.data.cause, event.data.epoch
        if event.type != NOTED or cause is None or epoch not in (None, of_epoch):
            continue
        rank = int(cause.numbers.get("rank", 0))
        waits = cause.code is CauseCode.OUTPUT_WAITS and of_epoch == job.epoch and not job.state.final
        if rank in ranks and (waits or cause.code is CauseCode.OUTPUT_LOST):
            sentence = cause.sentence.removeprefix(f"rank {rank}: ")
            found[(of_epoch, rank)] = f"rank {rank} of {job.name}, epoch {of_epoch}: {sentence} (seen at {event.time})"
    return list(found.values())
