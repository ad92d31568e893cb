"""A thousand nodes lose NATS at once: how long until all are answered again, and what that costs."""

from pathlib import Path

from tests.bench.figures import Figures
from tests.support.postgres import embedded, stores
from tests.support.storm import storm

NODES = 1000


async def measure(home: Path, figures: Figures) -> None:
    async with embedded(home / "postgres") as server, stores(server) as opened:
        seen = await storm(home, opened, nodes=NODES)
    figures.add(
        f"{NODES} nodes lose NATS (kill -9, away 2 s): all connected, all answered, after it is back",
        f"{seen.last_connected:.1f} s, {seen.last_answered:.1f} s",
        "well below the lease of 150 s",
    )
    figures.add("… reports answered a second, at the peak", f"{seen.answers_per_second_max}")
    figures.add("… processor time of the scheduler, of NATS", f"{seen.scheduler_cpu:.1f} s, {seen.server_cpu:.1f} s")
    figures.add(
        "… leaders, nodes declared lost, jobs put back, jobs that run",
        f"{seen.leaders}, {seen.lost}, {seen.requeued}, {seen.running}",
        f"1, 0, 0, {NODES}",
    )
