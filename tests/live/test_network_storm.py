"""All nodes lose NATS at once, and come back at once: none is taken for lost, and no leader falls over it."""

from pathlib import Path

from tests.support.postgres import embedded, stores
from tests.support.storm import storm

NODES = 200
SECONDS_MAX = 30.0  # far below the lease of a node


async def test_two_hundred_nodes_that_come_back_at_once_are_all_answered(tmp_path: Path) -> None:
    async with embedded(tmp_path / "postgres") as server, stores(server) as opened:
        seen = await storm(tmp_path, opened, nodes=NODES)
    assert (seen.leaders, seen.lost, seen.requeued, seen.running) == (1, 0, 0, NODES)
    assert seen.last_answered < SECONDS_MAX
