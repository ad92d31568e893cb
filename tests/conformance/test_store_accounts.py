"""Weft's account of what jobs held against one made from the rows of `gpu_slots` as Postgres changed them."""

import random

import asyncpg
import pytest

from tests.chaos.slots import Accounted, note_slots, slot_seconds
from tests.support import postgres
from tests.support.held_story import LIKELY, tell_at_random
from tests.support.postgres import Stores
from weft.domain.job import JobEvent
from weftd.gateway.accounting.accounts import account_of

BEGAN = 1_767_225_600.0


@pytest.fixture(scope="module")
async def stores(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    async with postgres.embedded(tmp_path_factory.mktemp("slots")) as server, postgres.stores(server) as made:
        await note_slots(made.owner)
        yield made


async def held(stores: Stores, begins: float, ends: float) -> Accounted:
    account = await account_of(stores.gateway, begins, ends)
    found: dict[str, int] = {}
    for stretch in account.stretches:
        found[stretch.job.id] = found.get(stretch.job.id, 0) + stretch.held
    return Accounted(by_weft=found, by_slots=await slot_seconds(stores.owner, account.begins, account.ends))


@pytest.mark.parametrize("seed", range(3))
async def test_the_account_is_what_the_slots_of_gpus_were(
    stores: Stores, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tune that is drawn at random takes other GPUs, which no scheduler does: the slots do not follow it.
    monkeypatch.setitem(LIKELY, JobEvent.TUNED, 0.0)
    await stores.clear()
    await stores.owner.execute("TRUNCATE noted_slots")
    last = await tell_at_random(stores.gateway, stores.scheduler, random.Random(seed), begins=BEGAN, jobs=8, things=200)
    for begins, ends in ((BEGAN, last), (BEGAN + 30.5, last - 10.25), (last - 5, last + 5)):
        found = await held(stores, begins, ends)
        assert found.apart == {}
    assert sum((await held(stores, BEGAN, last)).by_slots.values()) > 0
    await _falsify(stores.owner)
    assert (await held(stores, BEGAN, last)).apart != {}, "the check can fail"


async def _falsify(owner: asyncpg.Connection) -> None:
    """Events that say nothing of the GPUs that their jobs held."""
    await owner.execute(
        "UPDATE events SET data = jsonb_set(data, '{placement,allocations}', '[]') WHERE event = 'placed'"
    )
