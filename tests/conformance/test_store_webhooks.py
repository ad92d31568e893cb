"""Webhooks: as many as a tenant may have, moved by the holder of the duty alone."""

from msgspec.structs import replace

from tests.support.stores import AT, ONLY_POSTGRES, World
from weft.store.webhooks import WebhookKept

pytestmark = ONLY_POSTGRES

HOOK = WebhookKept(
    id="w-1",
    tenant="alice",
    url="https://example.org/",
    events=("failed", "started"),
    all_tenants=False,
    secret="whsec_eA==",
    created_at=AT,
    cursor="5-6",
)
DUTY = {"duty": "telling", "holder": "me"}


async def born(world: World) -> None:
    for tenant in ("alice", "bob"):
        hashed = tenant.encode().ljust(32, b".")
        await world.gateway.add_token(hashed, tenant=tenant, admin=False, label="", at=AT)


async def test_a_tenant_has_no_more_webhooks_than_it_may(world: World) -> None:
    await born(world)
    assert await world.gateway.add_webhook(HOOK, most=2)
    assert await world.gateway.add_webhook(replace(HOOK, id="w-3", events=(), all_tenants=True), most=2)
    assert not await world.gateway.add_webhook(replace(HOOK, id="w-4"), most=2)
    assert await world.gateway.add_webhook(replace(HOOK, id="w-2", tenant="bob"), most=2)
    assert [one.id for one in await world.gateway.webhooks()] == ["w-1", "w-2", "w-3"]
    assert [one.id for one in await world.gateway.webhooks(limit=1)] == ["w-1"]
    assert (await world.gateway.webhooks(tenant="alice"))[0] == HOOK
    assert await world.gateway.remove_webhook("w-1")
    assert not await world.gateway.remove_webhook("w-1")
    assert [one.id for one in await world.gateway.webhooks(tenant="alice")] == ["w-3"]


async def test_only_the_holder_of_the_duty_moves_a_webhook(world: World) -> None:
    await born(world)
    await world.gateway.add_webhook(HOOK, most=2)
    assert not await world.gateway.webhook_delivered("w-1", cursor="7-8", count=1, at=AT, **DUTY)
    assert await world.gateway.take_duty("telling", holder="me", seconds=60)
    assert not await world.gateway.take_duty("telling", holder="other", seconds=60)
    assert await world.gateway.take_duty("telling", holder="me", seconds=60)
    tried = {"error": "it answered 500", "off": ""}
    assert await world.gateway.webhook_failed("w-1", at=AT + 1, not_before=AT + 2, **tried, **DUTY)
    assert await world.gateway.webhook_failed("w-1", at=AT + 2, not_before=AT + 4, **tried, **DUTY)
    failing = replace(HOOK, failures=2, failing_since=AT + 1, not_before=AT + 4, error="it answered 500")
    assert await world.gateway.webhooks() == [failing]
    assert await world.gateway.webhook_delivered("w-1", cursor="7-7", count=0, at=AT + 4, **DUTY)
    assert await world.gateway.webhooks() == [replace(failing, cursor="7-7")]
    assert await world.gateway.webhook_delivered("w-1", cursor="7-8", count=1, at=AT + 5, **DUTY)
    delivered = replace(HOOK, cursor="7-8", delivered=1, delivered_at=AT + 5)
    assert await world.gateway.webhooks() == [delivered]
    assert await world.gateway.webhook_failed("w-1", at=AT + 6, not_before=AT + 7, error="x", off="why", **DUTY)
    assert [one.off for one in await world.gateway.webhooks()] == ["why"]
    await world.gateway.switch_on("w-1")
    assert await world.gateway.webhooks() == [replace(delivered, error="x")]
    await world.gateway.leave_duty("telling", holder="other")
    assert not await world.gateway.take_duty("telling", holder="other", seconds=60)
    await world.gateway.leave_duty("telling", holder="me")
    assert await world.gateway.take_duty("telling", holder="other", seconds=60)
    assert not await world.gateway.webhook_failed("w-1", at=AT, not_before=AT, error="x", off="", **DUTY)
