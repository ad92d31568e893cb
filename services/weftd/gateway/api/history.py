"""The recorded history of a pool, and the specifications of its jobs, for `weft replay`."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from weft.domain.spec import TOKEN_PATTERN
from weft.messages.http import HistoryView, SpecificationsView
from weftd.gateway.http.route import Call, RouteAnswer, Who, answer, operation

PART_BYTES = 4 << 20
AFTER = r"^[0-9]{1,18}-[0-9]{1,9}$(?!\n)"  # an epoch and a number

JOBS = r"^([a-z0-9-]{1,63}(,[a-z0-9-]{1,63}){0,49})?$(?!\n)"


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    pool: Annotated[str, Meta(pattern=TOKEN_PATTERN)] = "default"
    after: Annotated[str, Meta(pattern=AFTER, description="`after` of the part before this.")] = "0-0"
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000


@operation(
    "GET /v1/history",
    "cluster",
    "What the scheduler decided, and from what",
    description="Every record that is kept of a pool, in order and in parts: `weft replay` derives them anew.",
    who=Who.ADMIN,
    answers={200: RouteAnswer(description="A part of it.", type=HistoryView)},
    example="?pool=default",
)
async def history(call: Call[HistoryQuery]) -> web.StreamResponse:
    query = call.query
    epoch, _, number = query.after.partition("-")
    async with call.gateway.reading.one(call.who.tenant):
        records = await call.gateway.store.history(
            pool=query.pool, after=(int(epoch), int(number)), limit=query.limit, bytes_max=PART_BYTES
        )
    after = f"{records[-1].epoch}-{records[-1].number}" if records else ""
    return answer(HistoryView(pool=query.pool, records=tuple(records), after=after))


class SpecificationsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    jobs: Annotated[str, Meta(pattern=JOBS, description="Up to 50 ids of jobs, with commas between them.")] = ""


@operation(
    "GET /v1/history/specifications",
    "cluster",
    "What jobs in the history were submitted as",
    description="The records of the history name jobs; their specifications are here, in parts.",
    who=Who.ADMIN,
    answers={200: RouteAnswer(description="A part of them.", type=SpecificationsView)},
    example="?jobs=j-1,j-2",
)
async def specifications(call: Call[SpecificationsQuery]) -> web.StreamResponse:
    found = await call.gateway.store.specifications(call.query.jobs.split(","), bytes_max=PART_BYTES)
    return answer(SpecificationsView(specifications=found))
