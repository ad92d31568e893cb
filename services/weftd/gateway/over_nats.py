"""Submissions over NATS: the same as `POST /v1/jobs`, in the same lanes."""

from weft.bus import RawRequest
from weft.messages.asks import SubmitAnswered
from weft.store import StoreUnavailableError
from weftd.gateway.errors import RejectedError, unavailable
from weftd.gateway.gateway import Gateway

SUBMIT_SUBJECT = "weft.submit"
SUBMITS_AT_ONCE = 256  # of all tenants, each with its specification in memory: those beyond them wait in the bus
NATS_SOURCE = "NATS"  # a request over NATS has no source address: its connection's inbox stands for that


async def answer_submit(gateway: Gateway, asked: RawRequest) -> SubmitAnswered:
    """A request on `weft.submit`. Its tenant waits as over HTTP: for its lane, and for one of its places at work."""
    headers = {name.lower(): value for name, value in asked.headers.items()}
    try:
        try:
            who = await gateway.access.of(headers.get("authorization"), source=f"{NATS_SOURCE} {asked.sender}")
            gateway.count(who, changes=True)
            async with gateway.over_nats.one(who.tenant):
                await gateway.lanes.go(who.tenant)
                async with gateway.at_work.one(who.tenant):
                    work = gateway.submissions.submit(
                        who,
                        asked.payload,
                        content_type=headers.get("content-type", ""),
                        key=headers.get("idempotency-key"),
                    )
                    submitted = await gateway.lanes.paid(who.tenant, work)
        except StoreUnavailableError:
            raise unavailable() from None
    except RejectedError as error:
        later = error.retry_after if error.status in (429, 503) else 0.0
        return SubmitAnswered(error=error.reason, field=error.field, retry_after=later)
    return SubmitAnswered(job_id=submitted.id, created=submitted.created)
