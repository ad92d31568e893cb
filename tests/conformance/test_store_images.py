"""What every store promises of pushed images: whole or not there, the newest of each name, within a bound."""

from tests.support.stores import AT, World
from weft.store.images import ImageKept, ImagePiece

ONE, TWO = "1" * 64, "2" * 64


async def pushed(
    world: World, image: str, name: str, *pieces: bytes, digest: str = ONE, at: float = AT, most: int = 100
) -> bool:
    store, size = world.gateway, sum(map(len, pieces))
    if not await store.begin_upload("image", image, owner=name, digest=digest, size=size, at=at, most=most):
        return False
    for number, piece in enumerate(pieces):
        assert await store.add_piece("image", image, number, piece, at=at)
    await store.finish_upload("image", image, at=at)
    return True


async def test_an_image_is_there_once_it_is_whole(world: World) -> None:
    store = world.gateway
    assert await store.begin_upload("image", "i-1", owner="base:1", digest=ONE, size=5, at=AT, most=100)
    assert await store.add_piece("image", "i-1", 0, b"\0\xff1", at=AT)
    assert (await store.use_image("base:1", at=AT), await store.image_piece("base:1", 0)) == (None, None)
    assert await store.images() == []
    assert await store.add_piece("image", "i-1", 1, b"45", at=AT)
    await store.finish_upload("image", "i-1", at=AT)
    kept = ImageKept(name="base:1", digest=ONE, bytes=5, pushed_at=AT, used_at=AT + 5)
    assert await store.use_image("base:1", at=AT + 5) == kept
    assert await store.images() == [kept]
    assert [await store.image_piece("base:1", number) for number in range(3)] == [
        ImagePiece(data=b"\0\xff1", bytes=5, digest=ONE),
        ImagePiece(data=b"45", bytes=5, digest=ONE),
        None,
    ]
    assert not await store.add_piece("image", "i-1", 2, b"6", at=AT)


async def test_an_image_takes_the_place_of_the_one_before_of_its_name(world: World) -> None:
    store = world.gateway
    assert await pushed(world, "i-1", "base:1", b"old")
    assert await pushed(world, "i-2", "base:2", b"other", at=AT + 1)
    assert await pushed(world, "i-3", "base:1", b"new", digest=TWO, at=AT + 2)
    piece = await store.image_piece("base:1", 0)
    assert piece is not None
    assert (piece.data, piece.digest) == (b"new", TWO)
    assert [one.name for one in await store.images()] == ["base:1", "base:2"]
    assert await store.delete_image("base:1")
    assert not await store.delete_image("base:1")
    assert [one.name for one in await store.images()] == ["base:2"]


async def test_all_together_have_no_more_than_the_bound_and_what_is_replaced_does_not_count(world: World) -> None:
    assert await pushed(world, "i-1", "base:1", b"x" * 60)
    assert not await pushed(world, "i-2", "base:2", b"x" * 41)
    assert await pushed(world, "i-3", "base:1", b"x" * 90)
    assert await world.gateway.begin_upload("image", "i-4", owner="base:2", digest=TWO, size=10, at=AT, most=100)
    assert not await pushed(world, "i-5", "base:3", b"x")
    await world.gateway.drop_upload("image", "i-4")
    assert await pushed(world, "i-6", "base:3", b"x")


async def test_what_was_not_used_for_long_goes_first_and_what_never_became_whole(world: World) -> None:
    store = world.gateway
    for number in range(3):
        assert await pushed(world, f"i-{number}", f"base:{number}", b"x", at=AT + number)
    assert await store.begin_upload("image", "i-9", owner="half:1", digest=TWO, size=10, at=AT + 100, most=1000)
    assert await store.use_image("base:0", at=AT + 50) is not None
    assert await store.forget_uploads("image", whole_before=AT + 10, begun_before=AT, most=1) == 1
    assert [one.name for one in await store.images()] == ["base:0", "base:2"]
    assert await store.forget_uploads("image", whole_before=AT + 10, begun_before=AT + 101) == 2
    assert [one.name for one in await store.images()] == ["base:0"]
    assert not await store.add_piece("image", "i-9", 0, b"x", at=AT)
