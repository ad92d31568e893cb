"""What the schedulers were told and decided, as it is recorded: for `weft replay`. It holds every specification."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from libs.domain.spec import TOKEN_PATTERN
from libs.messages.http import HistoryView
from services.gateway.route import Call, answer

PART_BYTES = 4 << 20
AFTER = r"^[0-9]{1,18}-[0-9]{1,9}$(?!\n)"  # an epoch and a number


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    pool: Annotated[str, Meta(pattern=TOKEN_PATTERN)] = "default"
    after: Annotated[str, Meta(pattern=AFTER, description="`after` of the part before this.")] = "0-0"
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000


async def history(call: Call[HistoryQuery]) -> web.StreamResponse:
    query = call.query
    epoch, _, number = query.after.partition("-")
    records = await call.gateway.store.history(
        pool=query.pool, after=(int(epoch), int(number)), limit=query.limit, bytes_max=PART_BYTES
    )
    after = f"{records[-1].epoch}-{records[-1].number}" if records else ""
    return answer(HistoryView(pool=query.pool, records=tuple(records), after=after))
