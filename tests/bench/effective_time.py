"""The part of its time in which a gang of 64 nodes trains while nodes fail: a part of `python -m tests.bench health`.

The scheduler's own core decides, in virtual time, about 68 nodes of 8 GPUs: the gang, and four pre-emptible jobs of one
node on the rest. A faulty node stays faulty until a person resets it: a gang that starts there fails again. There are
three ways to live with that: *retry anywhere* (nobody sees that the GPU is sick: the program ends with an error),
*quarantine* (its node reports the Xid), and *spares* (the same with four of them).

Published: Llama 3 counts 419 unplanned interruptions of 2,048 nodes in 54 days (arXiv 2407.21783); Meta's research
clusters one in 7.9 hours for 128 nodes (arXiv 2410.21680); a try that fails again takes 11 minutes (arXiv 2605.09370).
Delta's authors ask for 5 % of spares (arXiv 2503.11901). Assumed, as no source gives them: a reset after 4 hours, 3
minutes from the start of a gang to its first step, a checkpoint each 10 minutes.
"""

from heapq import heappop, heappush
from random import Random

from msgspec import Struct

from tests.bench.figures import Aim, Figures
from tests.support.builders import capacity
from tests.support.nodes import ScriptedNode
from tests.support.scheduler import World
from weft.domain.job import JobState, Step, after
from weft.messages.nodes import GpuSigns, NodeSigns
from weftd.scheduler.thinking.core_settings import Settings

DAY = 86400.0
NODES, GANG, GPUS = 68, 64, 8
LLAMA3, RSC = 419 / (54 * 2048), 24 / (7.9 * 128)  # faults of a node in a day
FAILS_AGAIN, RESET, FIRST_STEP, CHECKPOINT = 660.0, 4 * 3600.0, 180.0, 600.0  # seconds
ROUND, ROUNDS_MAX = 2.0, 8  # a report of every node; all that follows from a fault takes fewer rounds
DAYS, QUICK_DAYS = 10.0, 2.0
EFFECTIVE, POINTS = 97.0, 10.0  # percent


class Way(Struct, frozen=True):
    name: str
    sees: bool
    spares: int


ANYWHERE, QUARANTINE, SPARES = (
    Way("retry anywhere", False, 0),
    Way("quarantine", True, 0),
    Way("quarantine and spares", True, NODES - GANG),
)


def effective(*, quick: bool, seed: int, figures: Figures) -> dict[str, Aim]:
    days, aims = QUICK_DAYS if quick else DAYS, dict[str, Aim]()
    for source, rate in (("Llama 3", LLAMA3), ("RSC", RSC)):
        parts = {way: 100.0 * _Life(way, rate, Random(seed)).part(days * DAY) for way in (ANYWHERE, QUARANTINE, SPARES)}
        shown = ", ".join(f"{part:.1f} % {way.name}" for way, part in parts.items())
        figures.add(f"effective time of a gang of {GANG} nodes, faults as {source} ({days:g} days)", shown)
        name = source.lower().replace(" ", "")
        aims[f"effective_percent_{name}"] = Aim(value=round(parts[SPARES], 2), aim=EFFECTIVE, at_least=True)
        if rate == RSC:
            gained = round(parts[SPARES] - parts[ANYWHERE], 2)
            aims["points_above_retry_anywhere"] = Aim(value=gained, aim=POINTS, at_least=True)
    return aims


class _World(World):
    """Every node reports, then one cycle decides."""

    def keep(self, steps: list[Step]) -> list[Step]:
        for step in steps:
            self.stored[step.job_id] = after(self.stored[step.job_id], step)
        return steps

    def round(self) -> None:
        self.now += ROUND
        for node in self.nodes.values():
            report = node.report()
            self.core.report(report, self.now)
            self.keep(self.core.follow(report, self.now))
        self.keep(self.core.decide(self.now))
        self.core.take_node_changes()
        for node_id, node in self.nodes.items():
            node.hear(self.core.answer(node_id), now=self.now, leader=self.leader)


class _Life:
    def __init__(self, way: Way, rate: float, dice: Random) -> None:
        self._way, self._rate, self._dice = way, rate, dice
        nodes = [ScriptedNode(f"node-{number:02d}", capacity(gpus=GPUS)) for number in range(NODES)]
        settings = Settings(spares=way.spares, lease_seconds=1e9, settle_seconds=0.0)
        self._world = _World(*nodes, settings=settings)
        self._due: list[tuple[float, str, str]] = []
        self._faulty: set[str] = set()
        self._faults: dict[str, int] = {}
        self._runs_since: tuple[int, float] | None = None  # the epoch of the gang that runs, and since when
        self._useful = 0.0

    def part(self, seconds: float) -> float:
        """The part of `seconds` in which the gang made progress that it kept."""
        world = self._world
        world.round()
        retries = {"max": 1000}
        world.submit("j-gang", gpus=GPUS, replicas=GANG, spec={"retries": retries, "preemptible": False})
        world.round()
        for number in range(NODES - GANG):
            world.submit(f"j-{number}", gpus=GPUS)
        for node_id in world.nodes:
            self._push(self._dice.expovariate(self._rate / DAY), "fault", node_id)
        self._settle()
        while self._due[0][0] < seconds:
            at, what, node_id = heappop(self._due)
            world.now = max(world.now, at)
            self._happens(what, node_id)
            self._settle()
        world.now = max(world.now, seconds)
        self._account(ends=False)
        return self._useful / world.now

    def _push(self, after_s: float, what: str, node_id: str = "") -> None:
        heappush(self._due, (self._world.now + after_s, what, node_id))

    def _happens(self, what: str, node_id: str) -> None:
        if what == "fault":
            self._faulty.add(node_id)
            self._faults[node_id] = self._faults.get(node_id, 0) + 1
            self._push(RESET, "reset", node_id)
            if not self._way.sees:
                self._fail(node_id)
        elif what == "reset":
            self._faulty.discard(node_id)
            self._push(self._dice.expovariate(self._rate / DAY), "fault", node_id)
            for after_s in (40.0, 80.0, 7200.0, 14500.0):  # clean, on probation, healthy: by the reports of these times
                self._push(after_s, "report")
        elif what == "fails again" and node_id == str(self._world.core.cluster_state.jobs["j-gang"].epoch):
            for faulty in sorted(self._faulty):
                self._fail(faulty)
        if what in ("fault", "reset") and self._way.sees:
            known = self._faults[node_id]
            resets = known - (node_id in self._faulty)
            sign = GpuSigns(index=0, xids={"79": known}, resets=resets)
            self._world.nodes[node_id].signs = NodeSigns(boot="t", gpus=(sign,))

    def _fail(self, node_id: str) -> None:
        """The program of the gang notices the fault."""
        node = self._world.nodes[node_id]
        for key in [key for key in node.live if key[0] == "j-gang"]:
            node.end(key, 1)

    def _settle(self) -> None:
        """Rounds until nothing more follows; while the gang waits for its next try, it is looked at then."""
        jobs, before, same = self._world.core.cluster_state.jobs, tuple[int, ...](), 0
        for _ in range(ROUNDS_MAX):
            self._world.round()
            self._account(ends=True)
            now = tuple(job.version for job in jobs.values())
            same, before = same + 1 if now == before else 0, now
            if same == 2:
                break
        gang = self._world.core.cluster_state.jobs["j-gang"]
        if gang.state is JobState.QUEUED and gang.not_before > self._world.now:
            self._push(gang.not_before - self._world.now + 0.1, "report")
        held = gang.placement.allocations if gang.placement is not None and gang.state is JobState.RUNNING else ()
        if not self._way.sees and any(each.node_id in self._faulty for each in held):
            self._push(FAILS_AGAIN, "fails again", str(gang.epoch))

    def _account(self, *, ends: bool) -> None:
        """Count what the gang did since it began to run, once that run is over, or at the end of all."""
        gang, now = self._world.core.cluster_state.jobs["j-gang"], self._world.now
        running = gang.epoch if gang.state is JobState.RUNNING else None
        if self._runs_since is not None and (running != self._runs_since[0] or not ends):
            worked = max(0.0, now - self._runs_since[1] - FIRST_STEP)
            self._useful += worked - (worked % CHECKPOINT if running != self._runs_since[0] else 0.0)
            self._runs_since = None
        if running is not None and self._runs_since is None:
            self._runs_since = running, now
