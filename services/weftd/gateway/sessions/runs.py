"""Finds the run of a request, the node on which it is or was, and reads its log from that node."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from weft.bus import Bus
from weft.domain.job import PLACES, Cause, CauseCode, Job, JobState, Placement
from weft.messages.nodes import LogRead, ReadLog
from weft.store import GatewayStore
from weftd.gateway.errors import RejectedError
from weftd.gateway.readmodel.event_history import story_pages

CHUNK_BYTES = 256 << 10
ANSWER_SECONDS_MAX = 5.0
SPANS_MAX = 20


class RankRun(Struct, frozen=True, kw_only=True):
    """One rank of one epoch. `node_id` None: the epoch is not placed yet."""

    job_id: str
    epoch: int
    rank: int
    node_id: str | None


_NEVER_STARTED = frozenset(
    {
        CauseCode.START_FAILED,
        CauseCode.CANNOT_START,
        CauseCode.OBJECT_STORE,
        CauseCode.PORT_TAKEN,
        CauseCode.START_TIMEOUT,
    }
)


class _Ended(Struct, frozen=True):
    """The part of an event that shows how an epoch ended."""

    epoch: int
    state: JobState
    cause: Cause


class _Placed(Struct, frozen=True):
    """The placement in an event of `PLACES`; None if only a replica became ready, or its wait changed."""

    epoch: int
    placement: Placement | None = None


async def placements(store: GatewayStore, job: Job, epoch: int | None) -> dict[int, Placement]:
    """The placement of this epoch of a job, or of its newest placed epoch, with every rank that it ever had, including
    those that left."""
    known: dict[int, Placement] = {}
    async for page in story_pages(store, job.id, events=sorted(PLACES)):
        for event in page:
            _note(known, msgspec.json.decode(event.data, type=_Placed), epoch)
    _note(known, _Placed(job.epoch, job.placement), epoch)
    return known


def present_placement(job: Job) -> dict[int, Placement]:
    return {} if job.placement is None else {job.epoch: job.placement}


def _note(known: dict[int, Placement], placed: _Placed, epoch: int | None) -> None:
    if placed.placement is None or epoch not in (None, placed.epoch):
        return
    for earlier in [each for each in known if each < placed.epoch]:
        del known[earlier]
    before = known[placed.epoch].allocations if placed.epoch in known else ()
    ranks = {each.rank: each for each in (*before, *placed.placement.allocations)}
    every = tuple(ranks[rank] for rank in sorted(ranks))
    known[placed.epoch] = msgspec.structs.replace(placed.placement, allocations=every)


async def never_started(store: GatewayStore, job: Job, run: RankRun) -> Cause | None:
    """Why this run's epoch never ran; None if it may have run."""
    found: Cause | None = None
    async for page in story_pages(store, job.id):
        for event in page:
            told = msgspec.json.decode(event.data, type=_Ended)
            # A step to the queue increments the epoch, so the event of an epoch's end has the number of the next one.
            epoch = told.epoch - (told.state == JobState.QUEUED and told.epoch > 0)
            if epoch == run.epoch and told.cause.code in _NEVER_STARTED:
                found = told.cause
    return found


def find_run(job: Job, known: dict[int, Placement], *, epoch: int | None, role: str | None, rank: int) -> RankRun:
    """The run by epoch (else the newest that was placed) and rank; with a `role`, `rank` counts within it, and ranks
    that left count too.

    Raises RejectedError.
    """
    if epoch is None:
        epoch = max(known, default=job.epoch)
    if epoch > job.epoch:
        raise RejectedError(404, "epoch", f"{job.id} is in epoch {job.epoch}")
    placement = known.get(epoch)
    if placement is None:
        if epoch < job.epoch or job.state.final:
            raise RejectedError(404, "epoch", f"{job.id} was not placed in epoch {epoch}, so it wrote no log")
        return RankRun(job_id=job.id, epoch=epoch, rank=_rank_to_be(job, role, rank), node_id=None)
    ranks = {each.rank: each for each in placement.allocations if role is None or each.role == role}
    if not ranks:
        roles = ", ".join(dict.fromkeys(each.role for each in placement.allocations))
        raise RejectedError(404, "role", f"epoch {epoch} of {job.id} has no role {role}; there is {roles}")
    numbered = ranks if role is None else dict(enumerate(ranks[number] for number in sorted(ranks)))
    found = numbered.get(rank)
    if found is None:
        of_role = f" of role {role}" if role is not None else ""
        raise RejectedError(404, "rank", f"epoch {epoch} of {job.id} has the ranks {_spans(numbered)}{of_role}")
    return RankRun(job_id=job.id, epoch=epoch, rank=found.rank, node_id=found.node_id)


def _spans(numbers: Iterable[int]) -> str:
    """`0 to 3, 5`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    shown = [f"{first}" if first == last else f"{first} to {last}" for first, last in spans]
    return ", ".join(shown[:SPANS_MAX]) + (" and more" if len(shown) > SPANS_MAX else "")


def _rank_to_be(job: Job, role: str | None, rank: int) -> int:
    """The number of a rank in a job that is not placed: ranks are numbered role by role."""
    first = 0
    for name, count in job.wanted.items():
        if role is None or role == name:
            if role is not None and rank >= count:
                raise RejectedError(404, "rank", f"role {role} of {job.id} wants {count} replicas")
            return first + rank
        first += count
    raise RejectedError(404, "role", f"{job.id} has no role {role}; there is {', '.join(job.spec.roles)}")


async def read(bus: Bus, run: RankRun, *, offset: int, limit: int = CHUNK_BYTES, wait: float = 0.0) -> LogRead:
    """Bytes of the log from the node. Raises NoAnswerError."""
    assert run.node_id is not None, "a run that is nowhere has no log"
    asked = ReadLog(
        node_id=run.node_id,
        job_id=run.job_id,
        epoch=run.epoch,
        rank=run.rank,
        offset=offset,
        limit=limit,
        wait=wait,
    )
    return await bus.request(asked, LogRead, seconds_max=wait + ANSWER_SECONDS_MAX)


async def extent(bus: Bus, run: RankRun) -> tuple[int, int]:
    """The offset of the first byte that the node still has, and the present length of the log. Raises NoAnswerError."""
    first = await read(bus, run, offset=0, limit=1)
    return first.begins, first.size
