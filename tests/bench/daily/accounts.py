"""GPU-seconds by which the account differs from the rows of `gpu_slots` after ten minutes of chaos, which takes about a
quarter of an hour and tells how it goes on (`--quick`: half a minute, in about three); and what an account of 100,000
events costs: how long it takes, and for how long the loop that serves requests is held up by it at the most."""

import asyncio
import time
from pathlib import Path

from tests.bench.figures import Aim
from tests.chaos.run import Asked, chaos
from tests.support import postgres
from tests.support.filled import CAUSE, EVENTS_OF, PLACEMENT, fill_ended
from tests.support.postgres import Stores
from weft.messages.accounts import UsageGrouping
from weftd.gateway.accounting.accounts import account_of
from weftd.gateway.accounting.billing import billed
from weftd.gateway.thinking.accounting.used import UsedLedger

SECONDS, QUICK_SECONDS = 600.0, 30.0
SETTLE_SECONDS = 90.0  # an account needs no job to be over: what is not by then is accounted for as it is
JOBS, QUICK_JOBS = 20_000, 2_000
LOOK_SECONDS = 0.005
DAYS = 20


async def measure(home: Path, *, seed: int, quick: bool) -> dict[str, Aim]:
    found = await _large(home, QUICK_JOBS if quick else JOBS)
    seconds = QUICK_SECONDS if quick else SECONDS
    result = await chaos(Asked(seconds=seconds, seed=seed, settle=SETTLE_SECONDS, quiet=quick))
    apart, held = result.figures["gpu_seconds_apart"], result.figures["gpu_seconds_accounted"]
    assert isinstance(apart, float), "every run of chaos is accounted for"
    name = f"GPU-seconds apart, of {held} that were held in {seconds:g} s of chaos"
    return {**found, name: Aim(value=apart, aim=0.0)}


async def _large(home: Path, jobs: int) -> dict[str, Aim]:
    now = time.time()
    async with postgres.embedded(home) as server, postgres.stores(server) as stores:
        await fill_ended(stores.owner, jobs, began=now - DAYS * 86_400.0, lasting=(DAYS - 1) * 86_400.0)
        await _held_for_an_hour(stores)
        looking = asyncio.create_task(_longest_gap())
        began = time.perf_counter()
        account = await account_of(stores.gateway, now - (DAYS + 1) * 86_400.0, now)
        view = await asyncio.to_thread(
            billed,
            account,
            UsageGrouping.DAY,
            only=None,
            label="",
            limit=100,
            prices=None,
            ledger=UsedLedger(),
            capacity=True,
        )
        lasted = time.perf_counter() - began
        looking.cancel()
        gap = await looking
        assert view.total is not None, "an account has a total"
        assert round(view.total.gpu_seconds_held) == jobs * 3600
    events = jobs * len(EVENTS_OF)
    return {
        f"an account of {events:,} events (s)": Aim(value=round(lasted, 2), aim=15.0),
        f"the loop held up by it, at the most, of {events:,} events (s)": Aim(value=round(gap, 3), aim=0.25),
    }


async def _held_for_an_hour(stores: Stores) -> None:
    await stores.owner.execute(
        "UPDATE events SET data = data || jsonb_build_object('placement', $1::text::jsonb, 'cause', $2::text::jsonb)"
        " WHERE event = 'placed'",
        PLACEMENT,
        CAUSE,
        timeout=120,
    )
    await stores.owner.execute("UPDATE events SET at = at + interval '1 hour' WHERE event = 'succeeded'", timeout=120)
    await stores.owner.execute("VACUUM ANALYZE", timeout=120)


async def _longest_gap() -> float:
    """Between two turns of the loop, beyond what was asked for."""
    longest, last = 0.0, time.perf_counter()
    try:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.perf_counter()
            longest, last = max(longest, now - last - LOOK_SECONDS), now
    except asyncio.CancelledError:
        return longest
