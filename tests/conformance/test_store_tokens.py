"""What every store promises of tokens."""

from tests.support.stores import AT, World
from weft.store.tenants import Access, TokenKept


async def test_a_token_gives_access_until_it_is_revoked(world: World) -> None:
    mine, admins, others = (bytes([number]) * 32 for number in (1, 2, 3))
    assert await world.gateway.access(mine, at=AT) is None
    await world.gateway.add_token(mine, tenant="alice", admin=False, label="laptop", at=AT)
    await world.gateway.add_token(others, tenant="alice", admin=False, label="desk", at=AT)
    await world.gateway.add_token(admins, tenant="admin", admin=True, label="laptop", at=AT)
    assert await world.gateway.access(mine, at=AT) == Access(tenant="alice", label="laptop")
    assert await world.gateway.access(admins, at=AT) == Access(tenant="admin", admin=True, label="laptop")
    assert await world.gateway.revoke_tokens(tenant="alice", label="laptop", at=AT) == 1
    assert await world.gateway.revoke_tokens(tenant="alice", label="laptop", at=AT) == 0
    assert await world.gateway.access(mine, at=AT) is None
    assert await world.gateway.access(others, at=AT) == Access(tenant="alice", label="desk")
    assert await world.gateway.access(admins, at=AT) is not None


async def test_the_same_token_again_changes_nothing(world: World) -> None:
    token = bytes(32)
    await world.gateway.add_token(token, tenant="alice", admin=False, label="a", at=AT)
    await world.gateway.add_token(token, tenant="bob", admin=True, label="b", at=AT)
    assert await world.gateway.access(token, at=AT) == Access(tenant="alice", label="a")
    assert await world.gateway.revoke_tokens(tenant="alice", label="a", at=AT) == 1
    await world.gateway.add_token(token, tenant="alice", admin=False, label="a", at=AT)
    assert await world.gateway.access(token, at=AT) is None


async def test_a_token_ends_by_itself_when_it_was_said_to(world: World) -> None:
    token = bytes([4]) * 32
    await world.gateway.add_token(token, tenant="alice", admin=False, label="ci", at=AT, expires_at=AT + 10)
    assert await world.gateway.access(token, at=AT + 9.9) == Access(tenant="alice", label="ci")
    assert await world.gateway.access(token, at=AT + 10) is None
    assert await world.gateway.access(token, at=AT + 9.9) is not None


async def test_a_token_tells_when_it_was_used_and_no_oftener_than_it_is_asked_to(world: World) -> None:
    token, other = (bytes([number]) * 32 for number in (5, 6))
    await world.gateway.add_token(token, tenant="alice", admin=False, label="ci", at=AT)
    await world.gateway.add_token(other, tenant="bob", admin=True, label="ci", at=AT)
    seen = []
    for at in (AT + 5, AT + 64, AT + 66, AT + 1):
        await world.gateway.token_used(token, at=at, not_within=60)
        seen.append([each.used_at for each in await world.gateway.tokens(tenant="alice")])
    assert seen == [[AT + 5], [AT + 5], [AT + 66], [AT + 66]]
    assert [each.used_at for each in await world.gateway.tokens(tenant="bob")] == [None]


async def test_tokens_are_listed_the_newest_first_with_all_that_is_known_of_them(world: World) -> None:
    for number, (tenant, label) in enumerate([("alice", "a"), ("bob", "b"), ("alice", "c")]):
        await world.gateway.add_token(
            bytes([number]) * 32,
            tenant=tenant,
            admin=number == 1,
            label=label,
            at=AT + number,
            expires_at=AT + 99 if label == "c" else None,
        )
    assert await world.gateway.revoke_tokens(tenant="alice", label="a", at=AT + 7) == 1
    assert await world.gateway.tokens() == [
        TokenKept(tenant="alice", label="c", admin=False, created_at=AT + 2, expires_at=AT + 99),
        TokenKept(tenant="bob", label="b", admin=True, created_at=AT + 1),
        TokenKept(tenant="alice", label="a", admin=False, created_at=AT, revoked_at=AT + 7),
    ]
    assert [each.label for each in await world.gateway.tokens(tenant="alice", limit=1)] == ["c"]
