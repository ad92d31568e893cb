"""The queue for all readers: waiting jobs in the order in which they are served, and other jobs on request.

The order of each pool is computed once for all readers, in a thread, at most once a second, and less often if it takes
longer. Answers are reused for the same question until the order is computed again.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from weft.domain.job import FINAL, Cause, CauseCode, Job, JobState
from weft.domain.quantity import duration_text
from weft.domain.spec import TOKEN_PATTERN, Kind
from weft.messages.eta import Estimate
from weft.messages.live import QueueRow
from weft.planning.eta.told import as_it_fits
from weft.planning.in_order import InQueue, in_order
from weft.store import GatewayStore
from weft.store.tenants import Access
from weftd.gateway.readmodel.endings import endings
from weftd.gateway.readmodel.queue_estimates import QueueEstimates
from weftd.gateway.readmodel.reasons import Reasons
from weftd.gateway.readmodel.snapshots import SECONDS, Fresh, Snapshots
from weftd.gateway.readmodel.views import size_shown
from weftd.gateway.readmodel.visibility import may_see

ROWS_MAX = 200
REPLY_BYTES_MAX = 190_000  # of the rows; a reply is at most 200 kB
TEXT_MAX = 200
LABEL_MAX = 400
OFFSET_MAX = 10_000_000
SENTENCE_MAX = 500  # characters of a reason that are shown,
LABELS_MAX = 16  # and labels
ENDED_MAX = 1000  # newest ended jobs that are searched
SPARING = 15  # the order is computed again after this multiple of its duration
ARRAYS_COUNTED_MAX = 20  # in one answer: each may have very many elements
PAUSE_SECONDS_MAX = 5.0
ANSWERS_BYTES_MAX = 16 << 20  # answers kept for the same question

WAITS = (JobState.QUEUED,)


class QueueQuery(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: Annotated[str, Meta(pattern=TOKEN_PATTERN, description="For administrators only.")] | None = None
    pool: Annotated[str, Meta(pattern=TOKEN_PATTERN)] | None = None
    kind: Kind | None = None
    state: Annotated[
        str,
        Meta(
            description="One or several, with commas; without: `queued`. Jobs that hold resources come first, then"
            f" those that wait, then those that are over: of these the newest {ENDED_MAX} are looked through."
        ),
    ] = ""
    label: Annotated[str, Meta(max_length=LABEL_MAX, description="`NAME=VALUE`: only jobs with that label.")] = ""
    text: Annotated[str, Meta(max_length=TEXT_MAX, description="Part of the name or of the id.")] = ""
    arrays: Annotated[bool, Meta(description="1: one row for each array, at the place of its first element.")] = False
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX)] = 0
    limit: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = 100


class Line(Struct, frozen=True):
    """The queue of one pool at one time, and the answers computed from it."""

    at: float
    order: str
    waiting: list[InQueue]
    tenants: dict[str, list[InQueue]]
    starts: Mapping[str, Estimate]


class Lines:
    """The queues of all pools. `clock` does not jump, `now` is the time of day."""

    def __init__(
        self,
        store: GatewayStore,
        snapshots: Snapshots,
        reasons: Reasons,
        queue_estimates: QueueEstimates,
        *,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._snapshots = snapshots
        self._reasons = reasons
        self._queue_estimates = queue_estimates
        self._clock = clock
        self._now = now
        self._again_at = 0.0
        self._lines: Fresh[dict[str, Line]] = Fresh(self._read, clock=clock, seconds=SECONDS)
        self._answers: dict[tuple[object, ...], bytes] = {}
        self._answers_bytes = 0
        self._answers_of: dict[str, Line] = {}

    async def answer(self, who: Access, query: QueueQuery, states: Sequence[JobState]) -> bytes:
        lines = await self._lines.get()
        if lines is not self._answers_of:
            self._answers, self._answers_bytes, self._answers_of = {}, 0, lines
        key = (who.tenant, who.admin, *structs.astuple(structs.replace(query, state=",".join(states))))
        known = self._answers.get(key)
        if known is None:
            known = await self._made(lines, who, query, states)
            if lines is self._answers_of and self._answers_bytes + len(known) <= ANSWERS_BYTES_MAX:
                self._answers[key] = known
                self._answers_bytes += len(known)
        return known

    async def _read(self) -> dict[str, Line]:
        last = self._lines.last
        if last is not None and self._clock() < self._again_at:
            return last
        began = self._clock()
        lines = {pool: await self._line(pool) for pool in await self._snapshots.pools()}
        self._again_at = self._clock() + min(PAUSE_SECONDS_MAX, SPARING * (self._clock() - began))
        return lines

    async def _line(self, pool: str) -> Line:
        nodes = await self._snapshots.nodes.get()
        holding, queued = await self._snapshots.holding(pool), await self._snapshots.queued(pool)
        policy, now = await self._store.policy(pool=pool), self._now()
        places = self._snapshots.places(pool, policy)
        held = {job.id for job in holding}  # it was placed between the two reads
        queued = [job for job in queued if job.id not in held]
        waiting = await asyncio.to_thread(
            in_order, queued, nodes=nodes.of(pool), holding=holding, places=places, now=now
        )
        tenants: dict[str, list[InQueue]] = {}
        for each in waiting:
            tenants.setdefault(each.job.tenant, []).append(each)
        in_turn = [each.job for each in waiting]
        quotas = await self._snapshots.quotas(pool)
        starts = await self._queue_estimates.of(
            pool, nodes=nodes.of(pool), holding=holding, queued=in_turn, policy=policy, quotas=quotas
        )
        return Line(now, places.order.name, waiting, tenants, starts)

    async def _made(self, lines: dict[str, Line], who: Access, query: QueueQuery, states: Sequence[JobState]) -> bytes:
        lines = {pool: line for pool, line in lines.items() if query.pool in (None, pool)}
        tenant = query.tenant if who.admin else who.tenant
        matches = _filter(query, states)
        found: list[InQueue | Job] = []
        if any(state.holding for state in states):
            for pool in lines:
                held = await self._snapshots.holding(pool)
                found += [job for job in held if tenant in (None, job.tenant) and matches(job)]
        if JobState.QUEUED in states:
            for line in lines.values():
                seen = line.waiting if tenant is None else line.tenants.get(tenant, [])
                if not _is_open(query):
                    seen = await asyncio.to_thread(_matching, seen, matches)
                found += seen
        ended = tuple(state for state in states if state in FINAL)
        if ended:
            over = await self._store.jobs(tenant=tenant, states=ended, name="", limit=ENDED_MAX, before=0)
            found += [job for job in over if matches(job)]
        if query.arrays:
            found = await asyncio.to_thread(_one_of_each_array, found)
        page = found[query.offset : query.offset + query.limit]
        assert all(may_see(who, _job_of(each).tenant) for each in page), "a job of another tenant in the queue"
        rows = await self._rows(page, lines)
        if query.arrays:
            rows = await self._with_arrays(page, rows)
        orders = ", ".join(sorted({line.order for line in lines.values()}))
        return _encoded(at=self._now(), total=len(found), order=orders, rows=rows)

    async def _with_arrays(self, page: Sequence[InQueue | Job], rows: Sequence[QueueRow]) -> list[QueueRow]:
        """The rows of elements as rows of their arrays, with the elements counted."""
        elements = {job.id: job.spec.element for job in map(_job_of, page) if job.spec.element is not None}
        arrays = sorted({element.array for element in elements.values()})[:ARRAYS_COUNTED_MAX]
        kept = {array.id: array for array in await self._store.arrays(ids=arrays)} if arrays else {}
        made: list[QueueRow] = []
        for row in rows:
            element = elements.get(row.id)
            if element is not None:
                array = kept.get(element.array)
                counts = {} if array is None else {state.value: count for state, count in array.states.items()}
                row = structs.replace(row, name=element.name, array=element.array, elements=counts)
            made.append(row)
        return made

    async def _rows(self, page: Sequence[InQueue | Job], lines: Mapping[str, Line]) -> list[QueueRow]:
        jobs = await self._reasons.fresh([_job_of(each) for each in page])
        ends = await endings(self._store, [job for job in jobs if job.state in FINAL])
        now = self._now()
        rows: list[QueueRow] = []
        for job, each in zip(jobs, page, strict=True):
            eta = None if job.is_held else lines[job.pool].starts.get(job.id) if job.pool in lines else None
            row = _row(job, self._cause(job, each, ends, now, eta))
            if isinstance(each, InQueue) and not job.is_held:
                row = structs.replace(row, place=each.ahead + 1, eta=eta)
            rows.append(row)
        return rows

    def _cause(
        self, job: Job, each: InQueue | Job, ends: dict[str, Cause], now: float, eta: Estimate | None
    ) -> tuple[str, str]:
        """Code and sentence of the reason why the job waits, is being stopped, or ended."""
        if not isinstance(each, InQueue):
            cause = ends.get(job.id) or job.stopping_for
            return ("", "") if cause is None else (cause.code.value, cause.sentence)
        cause = job.waiting_for
        if job.not_before > now and (cause is None or cause.code is not CauseCode.ORDERS_FULL):
            wait = duration_text(job.not_before - now)
            return CauseCode.BACKOFF.value, f"waits {wait} before it is tried again (try {job.attempts + 1})"
        if self._reasons.fits(job):
            code, sentence = as_it_fits(eta, each.ahead)
            return code.value, sentence
        return ("", "the scheduler has not considered it yet") if cause is None else (cause.code.value, cause.sentence)


def _is_open(query: QueueQuery) -> bool:
    """True if no filter is set that must look at each job."""
    return query.kind is None and not query.label and not query.text


def _filter(query: QueueQuery, states: Sequence[JobState]) -> Callable[[Job], bool]:
    name, _, value = query.label.partition("=")
    text, wanted = query.text.lower(), frozenset(states)

    def matches(job: Job) -> bool:
        return (
            job.state in wanted
            and query.pool in (None, job.pool)
            and query.kind in (None, job.spec.kind)
            and (not name or job.spec.labels.get(name) == value)
            and (not text or text in job.name.lower() or text in job.id)
        )

    return matches


def _one_of_each_array(found: Sequence[InQueue | Job]) -> list[InQueue | Job]:
    """The same jobs with only the first element of each array."""
    arrays: set[str] = set()
    kept: list[InQueue | Job] = []
    for each in found:
        element = _job_of(each).spec.element
        if element is not None:
            if element.array in arrays:
                continue
            arrays.add(element.array)
        kept.append(each)
    return kept


def _matching(waiting: Sequence[InQueue], matches: Callable[[Job], bool]) -> list[InQueue]:
    return [each for each in waiting if matches(each.job)]


def _job_of(each: InQueue | Job) -> Job:
    return each.job if isinstance(each, InQueue) else each


def _row(job: Job, cause: tuple[str, str]) -> QueueRow:
    (gpus, replicas), (code, sentence) = size_shown(job), cause
    return QueueRow(
        place=None,
        id=job.id,
        name=job.name,
        tenant=job.tenant,
        pool=job.pool,
        kind=job.spec.kind,
        state=job.state,
        priority=job.priority,
        gpus=gpus,
        replicas=replicas,
        submitted_at=job.submitted_at,
        since=job.since,
        code=code,
        sentence=sentence if len(sentence) <= SENTENCE_MAX else f"{sentence[:SENTENCE_MAX]}…",
        labels=dict(list(job.spec.labels.items())[:LABELS_MAX]),
    )


def _encoded(*, at: float, total: int, order: str, rows: Iterable[QueueRow]) -> bytes:
    """A QueueView with as many rows as a reply can hold."""
    encoded: list[bytes] = []
    size = 0
    for row in rows:
        encoded.append(msgspec.json.encode(row))
        size += len(encoded[-1]) + 1
        if size > REPLY_BYTES_MAX and len(encoded) > 1:
            encoded.pop()
            break
    told: dict[str, Any] = {"at": at, "total": total, "order": order, "rows": msgspec.Raw(b"[%s]" % b",".join(encoded))}
    return msgspec.json.encode(told)
