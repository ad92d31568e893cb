"""What every store promises of the past: the jobs and the events from which accounts are made."""

import random

import pytest

from tests.support.doubles.store import MemoryStore
from tests.support.held_story import tell_at_random
from tests.support.stores import World
from tests.support.story import BEGAN, tell_everything
from weft.store import GatewayStore


async def test_no_more_jobs_are_named_than_asked_for(world: World) -> None:
    await tell_everything(world.gateway, world.scheduler)
    every = await world.gateway.jobs_between(BEGAN, limit=1000)
    assert len(every) > 3
    assert len(await world.gateway.jobs_between(BEGAN, limit=2)) == 2
    assert await world.gateway.jobs_between(BEGAN + 1e8, limit=1000) == []


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
