"""Many jobs at once, by conditions: as a query has them, and cancelled by one request."""

from typing import Annotated, Any, ClassVar

from aiohttp import web
from msgspec import Meta, Struct

from weft.domain.job import FINAL, JobState
from weft.domain.selection import EVERY, ID_PREFIX_PATTERN, NAMES_PATTERN, Selection, labels_of
from weft.domain.spec import TOKEN_PATTERN, Kind
from weft.messages.asks import AskKind
from weft.messages.http import JobsAsked
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import Call, RouteAnswer, answer, operation
from weftd.gateway.limits.cpu_budget import ASK_SECONDS

STATES = ", ".join(JobState)
KINDS = ", ".join(Kind)
ASKS_OF_ONE_COST = 100  # stored by one statement cost as much as one that is stored alone
OPEN = tuple(state for state in JobState if state not in FINAL)
QUERY_LABELS_MAX = 2000
CANCELLED_MAX = 10_000  # by one request, so that its statement ends in time


class JobsSelected(Struct, frozen=True, forbid_unknown_fields=True):
    """The conditions of a query, which a job meets all together."""

    LISTS: ClassVar[frozenset[str]] = frozenset({"state", "kind", "label"})

    state: Annotated[str, Meta(description=f"One or several, with commas, of: {STATES}.")] = ""
    name: (
        Annotated[
            str,
            Meta(pattern=NAMES_PATTERN, description="A name, or a pattern: `*` is any characters, `?` is one."),
        ]
        | None
    ) = None
    id: Annotated[str, Meta(pattern=ID_PREFIX_PATTERN, description="How the id begins.")] | None = None
    label: Annotated[
        str,
        Meta(
            max_length=QUERY_LABELS_MAX,
            description="`NAME=VALUE`, or `NAME` for any value; of several, with commas, a job must have all.",
        ),
    ] = ""
    kind: Annotated[str, Meta(description=f"One or several, with commas, of: {KINDS}.")] = ""
    node: Annotated[str, Meta(pattern=TOKEN_PATTERN, description="On which it has a rank, or had one last.")] | None = (
        None
    )
    since: (
        Annotated[float, Meta(ge=0, lt=2**40, description="Submitted then or later: seconds since 1970-01-01 UTC.")]
        | None
    ) = None
    benchmarks: Annotated[bool, Meta(description="0: without the jobs that only measure a GPU.")] = True
    tenant: Annotated[str, Meta(pattern=TOKEN_PATTERN, description="For an administrator.")] | None = None
    elements: Annotated[bool, Meta(description="0: without the elements of arrays; `/v1/arrays` has these.")] = True


class CancelQuery(JobsSelected, frozen=True, forbid_unknown_fields=True):
    all: Annotated[bool, Meta(description="1: every open job, if no condition is given.")] = False
    limit: Annotated[int, Meta(ge=1, le=CANCELLED_MAX, description="Jobs of one request.")] = CANCELLED_MAX


@operation(
    "POST /v1/jobs/cancel",
    "jobs",
    "Cancel all jobs that meet conditions",
    description="Jobs that are not over, the newest first, at most `limit`; the conditions are those of `GET /v1/jobs`."
    " With `more` in the answer, send it again. Jobs for which it was asked already are left out.",
    answers={202: RouteAnswer(description="Stored; the scheduler does it.", type=JobsAsked)},
    example="?name=mlp-*&state=queued",
)
async def cancel(call: Call[CancelQuery]) -> web.StreamResponse:
    query, gateway, tenant = call.query, call.gateway, tenant_of(call)
    states = states_of(query.state)
    if over := FINAL.intersection(states):
        raise RejectedError(400, "state", f"{min(over)} is over already")
    selection = selection_of(query)
    if not (query.all or states or query.tenant or selection != EVERY):
        raise RejectedError(400, "all", "give a condition, or all=1 for every open job")
    if tenant != call.who.tenant:
        auditing = gateway.auditing
        await auditing.asked(auditing.actor(call.request, call.who), "cancel jobs", f"of {tenant or 'all tenants'}")
    async with gateway.reading.one(call.who.tenant):
        asked = await gateway.store.ask_selected(
            AskKind.CANCEL,
            selection,
            of=tenant,
            states=states or OPEN,
            limit=query.limit,
            tenant=call.who.tenant,
            at=gateway.now(),
            who=call.who.named,
        )
    count = sum(asked.values())
    gateway.cpu_budgets.charge(call.who.tenant, ASK_SECONDS * (1 + count / ASKS_OF_ONE_COST))
    for pool in asked:
        gateway.wakeups.asked(pool)
    return answer(JobsAsked(ask=AskKind.CANCEL, jobs=count, more=count == query.limit), status=202)


def tenant_of(call: Call[Any]) -> str | None:
    """The tenant whose jobs are meant; None: all. Raises RejectedError."""
    tenant = call.query.tenant if call.who.admin else call.who.tenant
    if call.query.tenant is not None and call.query.tenant != tenant:
        raise RejectedError(403, "tenant", "a tenant sees its own jobs only")
    return tenant


def selection_of(query: JobsSelected) -> Selection:
    """The conditions of the query. Raises RejectedError."""
    try:
        labels = labels_of(query.label)
    except ValueError as error:
        raise RejectedError(400, "label", str(error)) from None
    return Selection(
        names=query.name or "",
        id_prefix=query.id or "",
        labels=labels,
        kinds=_kinds_of(query.kind),
        node=query.node or "",
        since=query.since,
        benchmarks=query.benchmarks,
        elements=query.elements,
    )


def _kinds_of(text: str) -> tuple[Kind, ...]:
    names = [name.strip() for name in text.split(",")] if text else []
    unknown = [name for name in names if name not in Kind.__members__.values()]
    if unknown:
        raise RejectedError(400, "kind", f"no such kind: {unknown[0][:100]}; there is {KINDS}")
    return tuple(Kind(name) for name in dict.fromkeys(names))


def states_of(text: str) -> tuple[JobState, ...]:
    names = [name.strip() for name in text.split(",")] if text else []
    unknown = [name for name in names if name not in JobState.__members__.values()]
    if unknown:
        raise RejectedError(400, "state", f"no such state: {unknown[0][:100]}; there is {STATES}")
    return tuple(JobState(name) for name in dict.fromkeys(names))
