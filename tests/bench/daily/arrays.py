"""Arrays: 10,000 elements submitted, listed and cancelled over HTTP, with a real Postgres and a real NATS.

What is timed is what a user waits for: the request, and its answer once all elements are durable. The list is the one
row that `weft ps` shows, read while no element is over.
"""

import random
import time
from pathlib import Path

import msgspec

from tests.bench.figures import Aim
from tests.support.gateway import RunningGateway, add_nodes, place
from weft.client import Client

ELEMENTS = 10_000
SUBMIT_SECONDS_MAX = 5.0
LIST_SECONDS_MAX = 0.2
CANCEL_SECONDS_MAX = 1.0


async def measure(home: Path, *, seed: int, quick: bool) -> dict[str, Aim]:
    elements = 2_000 if quick else ELEMENTS
    name = f"bench-{random.Random(seed).randrange(10**6)}"
    async with place(home) as made:
        await add_nodes(made)
        gateway = RunningGateway(made)
        await gateway.start()
        try:
            async with gateway.client() as client:
                submit, listed, cancel = await _measured(client, name, elements)
        finally:
            await gateway.stop()
    return {
        f"array of {elements} submitted, s": Aim(value=submit, aim=SUBMIT_SECONDS_MAX),
        f"array of {elements} listed, s": Aim(value=listed, aim=LIST_SECONDS_MAX),
        f"array of {elements} asked to cancel, s": Aim(value=cancel, aim=CANCEL_SECONDS_MAX),
    }


async def _measured(client: Client, name: str, elements: int) -> tuple[float, float, float]:
    """The seconds of a submission, of the best of five lists, and of a cancel."""
    body = msgspec.json.encode({"name": name, "command": ["true"], "array": f"0-{elements - 1}%8"})
    began = time.perf_counter()
    submitted = await client.submit(body)
    submit = time.perf_counter() - began
    assert submitted.elements == elements
    lists = []
    for _ in range(5):
        began = time.perf_counter()
        (row,) = (await client.arrays(opened=True)).arrays
        lists.append(time.perf_counter() - began)
        assert row.states == {"queued": elements}
    began = time.perf_counter()
    assert (await client.cancel_array(submitted.id)).elements == elements
    return submit, min(lists), time.perf_counter() - began
