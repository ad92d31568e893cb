"""Contexts: whole or not there, by tenant and digest, and kept while a job needs them."""

from tests.conformance.test_store_secrets import born
from tests.support.builders import spec
from tests.support.stores import AT, ONLY_POSTGRES, World
from weft.store.contexts import ContextKept

pytestmark = ONLY_POSTGRES

ONE, TWO = "1" * 64, "2" * 64


async def stored(
    world: World, context: str, digest: str, *pieces: bytes, tenant: str = "alice", at: float = AT
) -> bool:
    store, size = world.gateway, sum(map(len, pieces))
    if not await store.begin_upload(context, owner=tenant, digest=digest, size=size, at=at, most=100):
        return False
    for number, piece in enumerate(pieces):
        assert await store.add_piece(context, number, piece, at=at)
    await store.finish_upload(context, at=at)
    return True


async def test_a_context_is_there_once_it_is_whole_and_for_its_tenant_alone(world: World) -> None:
    await born(world)
    store = world.gateway
    assert await store.begin_upload("c-1", owner="alice", digest=ONE, size=5, at=AT, most=100)
    assert await store.add_piece("c-1", 0, b"\0\xff1", at=AT)
    assert await store.use_context("alice", ONE, at=AT) is None
    assert await store.context_piece("alice", ONE, 0) is None
    assert await store.add_piece("c-1", 1, b"45", at=AT)
    await store.finish_upload("c-1", at=AT)
    assert await store.use_context("alice", ONE, at=AT + 5) == ContextKept(digest=ONE, bytes=5, used_at=AT + 5)
    assert await store.use_context("alice", ONE, at=AT) == ContextKept(digest=ONE, bytes=5, used_at=AT + 5)
    assert [await store.context_piece("alice", ONE, number) for number in range(3)] == [
        (b"\0\xff1", 5),
        (b"45", 5),
        None,
    ]
    assert await store.context_piece("bob", ONE, 0) is None
    assert await store.use_context("bob", ONE, at=AT) is None
    assert not await store.add_piece("c-1", 2, b"6", at=AT)


async def test_the_same_files_that_come_twice_are_stored_once(world: World) -> None:
    await born(world)
    assert await stored(world, "c-1", ONE, b"12345")
    assert await stored(world, "c-2", ONE, b"12345")
    assert await stored(world, "c-3", ONE, b"12345", tenant="bob")
    await world.gateway.drop_upload("c-2")
    assert await world.gateway.context_piece("alice", ONE, 0) == (b"12345", 5)
    assert await world.gateway.forget_uploads(whole_before=AT + 1, begun_before=AT + 1) == 2


async def test_a_tenant_stores_no_more_than_it_may_and_what_was_given_up_counts_no_more(world: World) -> None:
    await born(world)
    assert await stored(world, "c-1", ONE, b"x" * 60)
    assert not await stored(world, "c-2", TWO, b"x" * 41)
    assert await stored(world, "c-3", TWO, b"x" * 41, tenant="bob")
    assert await world.gateway.begin_upload("c-4", owner="alice", digest=TWO, size=40, at=AT, most=100)
    assert not await stored(world, "c-5", "3" * 64, b"x")
    await world.gateway.drop_upload("c-4")
    assert await stored(world, "c-5", "3" * 64, b"x")
    assert not await world.gateway.add_piece("c-4", 0, b"x", at=AT)


async def test_what_was_not_used_is_forgotten_the_oldest_first_but_not_what_an_open_job_names(world: World) -> None:
    await born(world)
    store = world.gateway
    for number, at in enumerate((AT, AT + 10, AT + 20)):
        assert await stored(world, f"c-{number}", str(number) * 64, b"x", at=at)
    assert await store.begin_upload("c-9", owner="alice", digest=ONE, size=1, at=AT + 5, most=100)
    await store.submit(spec(context="0" * 64), job_id="j-1", tenant="alice", key=None, at=AT)
    assert await store.forget_uploads(whole_before=AT + 15, begun_before=AT, owner="bob") == 0
    assert await store.forget_uploads(whole_before=AT + 30, begun_before=AT, owner="alice", most=1) == 1
    kept = [await store.use_context("alice", str(number) * 64, at=AT) is not None for number in range(3)]
    assert kept == [True, False, True]
    assert await store.forget_uploads(whole_before=AT + 15, begun_before=AT + 6) == 1
    assert not await store.add_piece("c-9", 0, b"x", at=AT)
    assert await store.forget_uploads(whole_before=AT + 30, begun_before=AT) == 1
    assert await store.use_context("alice", "0" * 64, at=AT) is not None
