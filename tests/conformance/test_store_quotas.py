"""What every store promises of quotas."""

from tests.support.stores import World
from weft.domain.quotas import ALL, Quota

VISION = Quota(name="vision", group="lab", guaranteed={ALL: 8000, "H100": 500}, limit={ALL: 16_000}, weight=3)
LAB = Quota(name="lab", is_group=True)


async def test_quotas_are_read_as_they_were_set_by_the_scheduler_of_their_pool(world: World) -> None:
    elsewhere = Quota(name="vision", pool="other")
    for quota in (VISION, LAB, elsewhere):
        await world.gateway.set_quota(quota)
    assert await world.scheduler.quotas(pool="default") == [LAB, VISION]
    assert await world.gateway.quotas(pool="other") == [elsewhere]
    assert await world.gateway.quotas() == [LAB, VISION, elsewhere]


async def test_a_quota_that_is_set_again_is_replaced_and_one_that_is_deleted_is_gone(world: World) -> None:
    await world.gateway.set_quota(VISION)
    await world.gateway.set_quota(Quota(name="vision", weight=2))
    assert await world.gateway.quotas(pool="default") == [Quota(name="vision", weight=2)]
    assert not await world.gateway.delete_quota("vision", pool="other")
    assert await world.gateway.delete_quota("vision", pool="default")
    assert await world.scheduler.quotas(pool="default") == []
