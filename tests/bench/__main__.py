"""`make bench`: everything, or the parts named: `python -m tests.bench deciding`.

`python -m tests.bench fairness` has a line of JSON at its end, and options of its own: see `tests.bench.fairness`.
`python -m tests.bench cluster`, `contract`, `daily`, `dashboards`, `elastic`, `eta`, `face`, `health`, `hosts`,
`house`, `kinds`, `models`, `partition`, `peers`, `people`, `python`, `serving`, `sharing` and `shipped` too: each has
its docstring.
`python -m tests.bench running --against PATH` runs parts of two checkouts in turns: see `tests.bench.against`.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.bench import deciding, drifting, network, overhead, running, scoring, simulating, telemetry, telling
from tests.bench.against import main as against
from tests.bench.cluster import main as cluster
from tests.bench.contract.measure import main as contract
from tests.bench.daily.measure import main as daily
from tests.bench.dashboards import main as dashboards
from tests.bench.elastic import main as elastic
from tests.bench.eta import main as eta
from tests.bench.face import main as face
from tests.bench.fairness.measure import main as fairness
from tests.bench.figures import Figures
from tests.bench.health import main as health
from tests.bench.hosts.measure import main as hosts
from tests.bench.house import main as house
from tests.bench.kinds.measure import main as kinds
from tests.bench.models.measure import main as models
from tests.bench.partition.measure import main as partition
from tests.bench.peers.measure import main as peers
from tests.bench.people.measure import main as people
from tests.bench.python import main as python
from tests.bench.routing import main as routing
from tests.bench.serving.measure import main as serving
from tests.bench.sharing.measure import main as sharing
from tests.bench.shipped import main as shipped
from tests.bench.whatif import main as whatif

PARTS = {
    "simulating": simulating.measure,
    "thinking": deciding.think,
    "deciding": deciding.measure,
    "drifting": drifting.measure,
    "scoring": scoring.measure,
    "running": running.measure,
    "network": network.measure,
    "overhead": overhead.measure,
    "telemetry": telemetry.measure,
    "telling": telling.measure,
}


async def bench(names: list[str]) -> None:
    figures = Figures()
    for name in names or PARTS:
        with tempfile.TemporaryDirectory(prefix="weft-bench-") as home:
            await PARTS[name](Path(home), figures)
    figures.show()


OWN = {
    "cluster": cluster,
    "contract": contract,
    "fairness": fairness,
    "elastic": elastic,
    "eta": eta,
    "face": face,
    "partition": partition,
    "peers": peers,
    "people": people,
    "python": python,
    "serving": serving,
    "sharing": sharing,
    "routing": routing,
    "whatif": whatif,
    "dashboards": dashboards,
    "health": health,
    "hosts": hosts,
    "house": house,
    "kinds": kinds,
    "models": models,
    "shipped": shipped,
    "daily": daily,
}

if sys.argv[1:2] and (own := OWN.get(sys.argv[1])):
    sys.exit(own(sys.argv[2:]))
if "--against" in sys.argv[1:]:
    sys.exit(against(sys.argv[1:]))
if unknown := set(sys.argv[1:]) - PARTS.keys():
    sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
asyncio.run(bench(sys.argv[1:]))
