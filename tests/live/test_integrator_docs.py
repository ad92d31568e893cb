"""The examples of docs/events.md, word for word, against a real NATS, a real Postgres and a gateway."""

import asyncio
import os
import re
import sys
import time
from pathlib import Path

from tests.support.gateway_world import World
from weftd.scheduler.outbox import OutboxPublisher

PAGE = Path(__file__).parents[2] / "docs/events.md"
SECONDS_MAX = 60.0


def examples() -> list[str]:
    """In the order of the page: submit, read by the consumer, read by number."""
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(found) == 3
    return found


async def says(world: World, example: str) -> list[str]:
    """The lines that it prints."""
    environment = {
        **os.environ,
        "NATS_URL": world.place.nats_url,
        "NATS_PASSWORD_FILE": str(world.place.credentials.nats_password_file("integrator")),
        "WEFT_TOKEN": world.tokens["alice"],
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", example), env=environment, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(SECONDS_MAX):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().splitlines()


async def test_the_examples_for_integrators_do_as_they_are_printed(world: World) -> None:
    submit, by_consumer, by_number = examples()
    async with world.place.bus("scheduler") as bus:
        await bus.ensure_stream()
        (first,) = await says(world, submit)
        (again,) = await says(world, submit)
        (job,) = (await world.alice.jobs()).jobs
        assert job.id in first
        assert "'created': True" in first
        assert first.replace("'created': True", "'created': False") == again
        await OutboxPublisher(store=world.place.stores.scheduler, bus=bus, clock=time.time).cycle()
    told = f"weft.jobs.submitted {job.id} 1"
    assert told in await says(world, by_number)
    assert told in await says(world, by_consumer)
    assert told in await says(world, by_number)
