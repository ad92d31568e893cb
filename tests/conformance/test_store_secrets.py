"""Secrets: a tenant's own, as many as it may have, by name."""

from tests.support.stores import AT, ONLY_POSTGRES, World
from weft.store.secrets import SecretKept

pytestmark = ONLY_POSTGRES


async def born(world: World) -> None:
    for tenant in ("alice", "bob"):
        hashed = tenant.encode().ljust(32, b".")
        await world.gateway.add_token(hashed, tenant=tenant, admin=False, label="", at=AT)


async def test_a_secret_is_stored_replaced_and_deleted_by_its_tenant_alone(world: World) -> None:
    await born(world)
    store = world.gateway
    assert await store.set_secret("alice", "b-token", "1", at=AT, most=2)
    assert await store.set_secret("alice", "a-token", "2", at=AT, most=2)
    assert await store.set_secret("bob", "a-token", "3", at=AT, most=2)
    assert await store.set_secret("alice", "b-token", "4 ✓\n", at=AT + 5, most=2)
    assert await store.secrets("alice") == [
        SecretKept(name="a-token", created_at=AT, updated_at=AT),
        SecretKept(name="b-token", created_at=AT, updated_at=AT + 5),
    ]
    assert await store.secret_values("alice", ["a-token", "b-token", "none"]) == {"a-token": "2", "b-token": "4 ✓\n"}
    assert await store.secret_values("bob", ["b-token"]) == {}
    assert not await store.delete_secret("bob", "b-token")
    assert await store.delete_secret("alice", "b-token")
    assert not await store.delete_secret("alice", "b-token")
    assert [one.name for one in await store.secrets("alice")] == ["a-token"]


async def test_a_tenant_has_no_more_secrets_than_it_may_and_can_still_replace_one(world: World) -> None:
    await born(world)
    for name in ("one", "two"):
        assert await world.gateway.set_secret("alice", name, "1", at=AT, most=2)
    assert not await world.gateway.set_secret("alice", "three", "1", at=AT, most=2)
    assert await world.gateway.set_secret("alice", "two", "2", at=AT, most=2)
    assert await world.gateway.set_secret("bob", "three", "1", at=AT, most=2)
    assert await world.gateway.secret_values("alice", ["two", "three"]) == {"two": "2"}
