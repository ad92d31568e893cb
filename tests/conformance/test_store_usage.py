"""What every store promises of GPUs over time: when those that are held, waited for and there changed, exactly."""

import random

import pytest

from libs.messages.series import GpuChanges
from libs.store import GatewayStore
from libs.store.memory import MemoryStore
from tests.support.held_story import tell_at_random
from tests.support.stores import World
from tests.support.story import BEGAN, tell_everything


async def changes(store: GatewayStore, begins: float, ends: float) -> list[GpuChanges]:
    ids = await store.jobs_between(begins, limit=1000)
    found = await store.gpu_changes(sorted(ids), begins=begins, ends=ends)
    return [*found, await store.gpus_there(begins=begins, ends=ends)]


async def test_when_gpus_changed_is_alike_in_every_store(world: World) -> None:
    """In the documented history, in which everything happens once, over windows that begin and end anywhere."""
    memory = MemoryStore()
    told = await tell_everything(memory, memory)
    await tell_everything(world.gateway, world.scheduler)
    times = sorted({event.at for event in told})
    drawn = random.Random(7)
    windows = [(BEGAN - 10, times[-1] + 10), (times[-1] + 1, times[-1] + 2)]
    windows += [(min(two), max(two)) for two in (drawn.sample(times, 2) for _ in range(25))]
    windows += [(at + 1e-6, times[-1] + 1) for at in drawn.sample(times, 10)]
    kinds = set()
    for begins, ends in windows:
        expected = await changes(memory, begins, ends)
        assert await changes(world.gateway, begins, ends) == expected
        kinds |= {(one.what, len(one.at) > 1) for one in expected}
    assert {("held", True), ("wanted", True), ("there", True)} <= kinds


@pytest.mark.parametrize("seed", range(3))
async def test_random_stories_with_shares_restarts_and_nodes_that_come_and_go_are_alike(
    world: World, seed: int
) -> None:
    memory = MemoryStore()
    last = await tell_at_random(memory, memory, random.Random(seed), begins=BEGAN, jobs=8, things=120)
    await tell_at_random(world.gateway, world.scheduler, random.Random(seed), begins=BEGAN, jobs=8, things=120)
    for begins, ends in ((BEGAN, last), (BEGAN + 30, last), (BEGAN + 60.5, last - 10), (last, last + 5)):
        assert await changes(world.gateway, begins, ends) == await changes(memory, begins, ends)


async def test_no_more_jobs_are_named_than_asked_for(world: World) -> None:
    await tell_everything(world.gateway, world.scheduler)
    every = await world.gateway.jobs_between(BEGAN, limit=1000)
    assert len(every) > 3
    assert len(await world.gateway.jobs_between(BEGAN, limit=2)) == 2
    assert await world.gateway.jobs_between(BEGAN + 1e8, limit=1000) == []


async def test_of_no_jobs_nothing_changed(world: World) -> None:
    assert await world.gateway.gpu_changes([], begins=BEGAN, ends=BEGAN + 1) == []
    assert await world.gateway.gpu_changes(["nobody"], begins=BEGAN, ends=BEGAN + 1) == []
    assert await world.gateway.gpus_there(begins=BEGAN, ends=BEGAN + 1) == GpuChanges(what="there")


@pytest.mark.parametrize("ends", [0.0, -5.0])
async def test_a_window_without_length_has_no_change(world: World, ends: float) -> None:
    await tell_everything(world.gateway, world.scheduler)
    assert await world.gateway.gpus_there(begins=BEGAN + 1e6, ends=BEGAN + 1e6 + ends) == GpuChanges(what="there")


async def account(store: GatewayStore, begins: float, ends: float) -> object:
    ids = sorted(await store.jobs_between(begins, limit=1000))
    told = await store.accounts(ids, begins=begins, ends=ends)
    nodes = await store.node_stories(begins=begins, ends=ends)
    seen = [(event.topic, event.subject_id, event.version, event.event, event.at) for event in (*told, *nodes)]
    return await store.job_facts(ids), seen


@pytest.mark.parametrize("seed", range(2))
async def test_what_an_account_is_made_from_is_alike_in_every_store(world: World, seed: int) -> None:
    memory = MemoryStore()
    last = await tell_at_random(memory, memory, random.Random(seed), begins=BEGAN, jobs=8, things=120)
    await tell_at_random(world.gateway, world.scheduler, random.Random(seed), begins=BEGAN, jobs=8, things=120)
    for begins, ends in ((BEGAN, last), (BEGAN + 30, last), (BEGAN + 60.5, last - 10), (last, last + 5)):
        assert await account(world.gateway, begins, ends) == await account(memory, begins, ends)


async def test_the_facts_of_a_job_are_alike_in_every_store(world: World) -> None:
    memory = MemoryStore()
    await tell_everything(memory, memory)
    await tell_everything(world.gateway, world.scheduler)
    assert await account(world.gateway, BEGAN, BEGAN + 1e6) == await account(memory, BEGAN, BEGAN + 1e6)
