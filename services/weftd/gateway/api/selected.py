"""Selection of many jobs by conditions: reads them from a query, and cancels the jobs with one request."""

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
    """The conditions of a query; a job must meet all of them."""

    LISTS: ClassVar[frozenset[str]] = frozenset({"state", "kind", "label"})

    state: Annotated[str, Meta(description=f"One or several of these, separated by commas: {STATES}.")] = ""
    name: (
        Annotated[
            str,
            Meta(
                pattern=NAMES_PATTERN, description="A name, or a pattern: `*` matches any characters, `?` matches one."
            ),
        ]
        | None
    ) = None
    id: Annotated[str, Meta(pattern=ID_PREFIX_PATTERN, description="Beginning of the id.")] | None = None
    label: Annotated[
        str,
        Meta(
            max_length=QUERY_LABELS_MAX,
            description="`NAME=VALUE`, or `NAME` for any value. A job must have all of several, separated by commas.",
        ),
    ] = ""
    kind: Annotated[str, Meta(description=f"One or several of these, separated by commas: {KINDS}.")] = ""
    node: (
        Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Node on which a rank of the job runs, or ran last.")]
        | None
    ) = None
    since: (
        Annotated[float, Meta(ge=0, lt=2**40, description="Earliest time of submission, in seconds since 1970.")] | None
    ) = None
    benchmarks: Annotated[bool, Meta(description="0: leave out jobs that only measure a GPU.")] = True
    tenant: (
        Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Only jobs of this tenant; for administrators.")] | None
    ) = None
    elements: Annotated[bool, Meta(description="0: leave out elements of arrays, which `/v1/arrays` lists.")] = True


class CancelQuery(JobsSelected, frozen=True, forbid_unknown_fields=True):
    all: Annotated[bool, Meta(description="1: cancel every open job if there is no condition.")] = False
    limit: Annotated[
        int, Meta(ge=1, le=CANCELLED_MAX, description="Maximum number of jobs that one request cancels.")
    ] = CANCELLED_MAX


@operation(
    "POST /v1/jobs/cancel",
    "jobs",
    "Cancel all jobs that meet conditions",
    description="Cancel open jobs, the newest first, at most `limit`. The conditions are those of `GET /v1/jobs`. If"
    " the answer has `more`, repeat the request: it skips jobs with a pending cancellation.",
    answers={202: RouteAnswer(description="The command is stored; the scheduler will execute it.", type=JobsAsked)},
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
    """The tenant whose jobs are selected; None: all tenants. Raises RejectedError."""
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
