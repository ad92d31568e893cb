"""Sick GPUs: `python -m tests.bench health [--quick] [--seed N]`.

*Live*: a cluster on this machine with emulated GPUs and short jobs that come all the time. Faults are drawn; each hits
a GPU on which a long job runs. Times are those that a client of the gateway sees, from the moment of the fault on.
*Virtual time*: fleets whose GPUs get drawn faults (single ones, many at once, flapping) and are reset at the end; and
fleets in which runs fail on one node, the lemon, five times as often as on the others; 72 hours of drawn samples of
GPUs that are well, which must raise no sign; and a gang of 64 nodes while nodes fail (`effective_time.py`).

The last line is one JSON object with the aims.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from random import Random

from msgspec import Struct

from tests.bench.effective_time import effective
from tests.bench.figures import Aim, Figures, line_of, milliseconds, quantile
from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.sick import SickFleet
from weft.domain.health import HealthState, Tally
from weft.domain.job import FINAL, JobState
from weft.emulation.faults import Fault, read_fault, write_fault
from weft.health.catalogue import LEMON, LEVELS, XIDS
from weft.health.lemons import LemonRules, began, failed, fleet_rate, signs_of
from weft.health.pool import most_out
from weft.health.state import HealthTimes
from weft.messages.signals import GpuSample, HostSample, NodeSampled
from weftd.executor.thinking.health import SignWatch

NODES, GPUS = 3, 8
FAULTS, SEEDS = 40, 1000
QUICK_FAULTS, QUICK_SEEDS = 6, 50
LOOK_SECONDS = 0.05
EVENTS_LOOKED_AT = 100
SECONDS_MAX = 60.0
CROWD, CROWD_SECONDS = 4, 0.5
DRAWN = (Fault(xids={"79": 1}), Fault(xids={"95": 1}), Fault(ecc=3), Fault(off_bus=True), Fault(xids={"119": 1}))
LEMON_NODES, LEMON_RUNS_A_DAY, LEMON_DAYS_MAX = 20, 24, 60
FLEET_RATES = (0.005, 0.01)  # the part of the runs on a sound node that fails
LEMON_FAILURES, FALSE_ALARMS_PER_1000 = 7.0, 1.0
CLEAN_HOURS, QUICK_CLEAN_HOURS, CLEAN_EVERY_SECONDS = 72, 12, 5.0
QUARANTINE_SECONDS, ELSEWHERE_SECONDS = 2.0, 10.0


class Closed(Struct, frozen=True):
    """A GPU that was out of use, as a client saw it. Times are seconds since the epoch."""

    node_id: str
    gpu: int
    since: float
    until: float


class Found(Struct):
    """`elsewhere`: from the fault until the job ran on another GPU. `attempts`: tries charged to the jobs."""

    quarantined: list[float]
    elsewhere: list[float]
    closed: list[Closed]
    attempts: int = 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench health", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer faults and fewer seeds")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    asked = parser.parse_args(arguments)
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="weft-health-") as home:
        faults = QUICK_FAULTS if asked.quick else FAULTS
        aims = asyncio.run(live(Path(home), faults=faults, dice=Random(asked.seed), figures=figures))
    seeds = QUICK_SEEDS if asked.quick else SEEDS
    aims |= virtual(seeds, first=asked.seed, figures=figures)
    aims |= lemons(SEEDS, first=asked.seed, figures=figures)  # the mean of fewer fleets is off by more than its slack
    aims |= clean(QUICK_CLEAN_HOURS if asked.quick else CLEAN_HOURS, Random(asked.seed), figures)
    aims |= effective(quick=asked.quick, seed=asked.seed, figures=figures)
    figures.show()
    print(line_of(aims, seed=asked.seed))
    return 0 if all(aim.met for aim in aims.values()) else 1


# live


async def live(home: Path, *, faults: int, dice: Random, figures: Figures) -> dict[str, Aim]:
    found, crowd = Found([], [], []), list[str]()
    async with embedded_cluster(home, nodes=NODES, gpus=GPUS, settings={"SCORER_BENCHMARKS": "off"}) as cluster:
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_crowd(cluster, crowd, over))
            for number in range(faults):
                await _fault(cluster, dice.choice(DRAWN), f"long-{number}", found)
            over.set()
        wrong = await _started_there(cluster, crowd, found.closed)
    figures.add(f"fault → quarantine stored ({faults} faults)", milliseconds(found.quarantined))
    figures.add("fault → the job runs elsewhere", milliseconds(found.elsewhere))
    figures.add("tries charged; jobs started on a quarantined GPU", f"{found.attempts}; {wrong} of {len(crowd)}")
    return {
        "quarantine_p99_seconds": Aim(value=round(quantile(found.quarantined, 0.99), 3), aim=QUARANTINE_SECONDS),
        "elsewhere_p99_seconds": Aim(value=round(quantile(found.elsewhere, 0.99), 3), aim=ELSEWHERE_SECONDS),
        "tries_charged": Aim(value=found.attempts, aim=0),
        "started_on_a_quarantined_gpu": Aim(value=wrong, aim=0),
    }


async def _crowd(cluster: Cluster, ids: list[str], over: asyncio.Event) -> None:
    """Short jobs, so that every GPU that is free is taken soon."""
    wanted = spec("short", gpus=1, command=["sleep", "0.3"], role={"cpus": 0.1, "memory": "16MiB"})
    while not over.is_set():
        ids += [(await cluster.client.submit(wanted)).id for _ in range(CROWD)]
        await asyncio.sleep(CROWD_SECONDS)


async def _fault(cluster: Cluster, fault: Fault, name: str, found: Found) -> None:
    wanted = spec(name, gpus=1, command=["sleep", "600"], role={"cpus": 0.1, "memory": "16MiB"})
    job = (await cluster.client.submit(wanted)).id
    view = await cluster.state(job, JobState.RUNNING)
    assert view.placement is not None
    place = view.placement.allocations[0]
    await _in_use(cluster, place.node_id, place.gpus[0])
    folder = cluster.local.home.node(place.node_id) / "emulated"
    before, at = read_fault(folder, place.gpus[0]), time.time()
    xids = {number: count + before.xids.get(number, 0) for number, count in fault.xids.items()}
    shown = Fault(xids={**before.xids, **xids}, ecc=fault.ecc, off_bus=fault.off_bus, resets=before.resets)
    write_fault(folder, place.gpus[0], shown)

    async def moved() -> float:
        again = await cluster.until(
            job, lambda now: now.state is JobState.RUNNING and now.epoch > view.epoch, seconds_max=SECONDS_MAX
        )
        found.attempts += again.attempts
        return time.time() - at

    async with asyncio.TaskGroup() as tasks:
        elsewhere = tasks.create_task(moved())
        seen = tasks.create_task(_stored(cluster, place.node_id, place.gpus[0], at))
    found.elsewhere.append(elsewhere.result())
    found.quarantined.append(seen.result() - at)
    await cluster.client.cancel(job)
    found.closed.append(Closed(place.node_id, place.gpus[0], seen.result(), time.time()))
    write_fault(folder, place.gpus[0], Fault(xids=shown.xids, resets=shown.resets + 1))
    await asyncio.sleep(2.5)  # until the node has reported that the fault is gone
    await cluster.client.give_back(place.node_id, place.gpus[0])


async def _stored(cluster: Cluster, node_id: str, index: int, after: float) -> float:
    """The time at which a client could read the event of the quarantine, which is stored with it."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            for event in await cluster.client.events(limit=EVENTS_LOOKED_AT):
                told = event.type == "weft.nodes.health" and event.subject == node_id
                late = datetime.fromisoformat(event.time).timestamp() > after
                if told and late and f"GPU {index} is" in event.data.sentence:
                    return time.time()
            await asyncio.sleep(LOOK_SECONDS)


async def _in_use(cluster: Cluster, node_id: str, index: int) -> None:
    """Return once no client is shown any more that the GPU is out of use."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            gpus = (await cluster.client.gpus(node=node_id)).gpus
            if not any(gpu.index == index and gpu.health is not None and gpu.health.closed for gpu in gpus):
                return
            await asyncio.sleep(LOOK_SECONDS)


async def _started_there(cluster: Cluster, ids: Sequence[str], closed: Sequence[Closed]) -> int:
    """How many jobs were placed on a GPU while it was out of use."""
    wrong = 0
    for job in ids:
        async with asyncio.timeout(SECONDS_MAX):
            while (await cluster.client.job(job)).state not in FINAL:  # noqa: ASYNC110 -- progress is no event
                await asyncio.sleep(LOOK_SECONDS)
        for event in await cluster.client.story(job):
            if event.type != "weft.jobs.placed" or event.data.placement is None:
                continue
            at = datetime.fromisoformat(event.time).timestamp()
            places = [(each.node_id, gpu) for each in event.data.placement.allocations for gpu in each.gpus]
            wrong += any(each.since < at < each.until and (each.node_id, each.gpu) in places for each in closed)
    return wrong


# virtual time


def virtual(seeds: int, *, first: int, figures: Figures) -> dict[str, Aim]:
    beyond = unwell = 0
    for seed in range(first, first + seeds):
        more, left = _lived(Random(seed))
        beyond, unwell = beyond + more, unwell + left
    figures.add(f"fleets beyond their bound; GPUs neither healthy nor broken ({seeds} seeds)", f"{beyond}; {unwell}")
    return {"fleets_beyond_their_bound": Aim(value=beyond, aim=0), "gpus_left_unwell": Aim(value=unwell, aim=0)}


def _lived(dice: Random) -> tuple[bool, int]:
    """A fleet with drawn faults, then reset and watched for days: was it ever beyond its bound, and how many of its
    GPUs are neither healthy nor broken with a reason at the end?"""
    fleet = SickFleet(dice.randint(1, 6), dice.choice((1, 4, 8)), HealthTimes())
    signs = [*(f"xid-{xid}" for xid in (*XIDS, 13, 31)), *LEVELS]
    beyond = False
    for _ in range(dice.randint(1, 60)):
        kind = dice.choice(("one", "many", "flap"))
        places = dice.sample(range(len(fleet.places)), len(fleet.places) if kind == "many" else 1)
        sign = dice.choice(signs)
        for place in places:
            fleet.happens(place, sign)
        fleet.report(dice.choice((1.0, 30.0, 600.0)))
        if kind == "flap":
            fleet.happens(places[0], dice.choice(("clear", "reset")))
            fleet.report(1.0)
        beyond = beyond or fleet.out > most_out(len(fleet.places))
    for place in range(len(fleet.places)):
        fleet.happens(place, "reset")
    for _ in range(200):
        fleet.report(3600.0)
        beyond = beyond or fleet.out > most_out(len(fleet.places))
    states = [each for node in fleet.nodes.values() for each in node.health]
    ends = [each for each in states if each.well or (each.state is HealthState.BROKEN and each.exit)]
    return beyond, len(states) - len(ends)


# lemons


def lemons(seeds: int, *, first: int, figures: Figures) -> dict[str, Aim]:
    failures, alarms, days, missed = list[int](), 0, 0, 0
    for seed in range(first, first + seeds):
        found, wrong, lasted = _sour(Random(seed))
        alarms, days = alarms + wrong, days + lasted * (LEMON_NODES - 1)
        failures += [found] if found else []
        missed += not found
    mean, per_1000 = sum(failures) / max(1, len(failures)), alarms * 1000 / days
    figures.add(f"lemons: failures until found ({seeds} fleets; missed)", f"{mean:.2f} ({missed})")
    figures.add(f"lemons: false alarms in 1,000 node-days (of {days:,})", f"{per_1000:.2f}")
    return {
        "failures_until_a_lemon_is_found": Aim(value=round(mean, 2), aim=LEMON_FAILURES),
        "lemons_missed": Aim(value=missed, aim=0),
        "false_alarms_per_1000_node_days": Aim(value=round(per_1000, 2), aim=FALSE_ALARMS_PER_1000),
    }


def _sour(dice: Random) -> tuple[int, int, int]:
    """A fleet until its lemon is found: the lemon's failures (0: never found), sound nodes found, and days."""
    rules, rate = LemonRules(), dice.choice(FLEET_RATES)
    rates = [rate * (rules.factor if node == 0 else 1.0) for node in range(LEMON_NODES)]
    tallies, alarms = [Tally() for _ in rates], 0
    for day in range(1, LEMON_DAYS_MAX + 1):
        for run in range(LEMON_RUNS_A_DAY):
            for node, chance in enumerate(rates):
                others = (each for index, each in enumerate(tallies) if index != node)
                if dice.random() >= chance:
                    tallies[node] = began(tallies[node], 1, rate, rules)
                    continue
                known = fleet_rate(others, rules)
                tallies[node] = failed(
                    began(tallies[node], 1, known, rules), f"{day}-{run}", known, day * 86400.0, rules
                )
                if LEMON not in signs_of(tallies[node], LEMON_NODES, rules):
                    continue
                if node == 0:
                    return tallies[node].failures, alarms, day
                alarms, tallies[node] = alarms + 1, Tally()
    return 0, alarms, LEMON_DAYS_MAX


# GPUs that are well


def clean(hours: int, dice: Random, figures: Figures) -> dict[str, Aim]:
    """A node whose GPUs run jobs, idle, heat up, save power and correct single errors, but are well."""
    watch, alarms, now = SignWatch(), 0, 0.0
    gpus = [_WellGpu(index, dice) for index in range(GPUS)]
    began = time.perf_counter()
    while now < hours * 3600.0:
        now += CLEAN_EVERY_SECONDS
        host = HostSample(cpus=8, memory_total=1, memory_used=0, disk_total=1000, disk_used=dice.randint(400, 900))
        told = NodeSampled(node_id="n", pool="p", at=now, host=host, gpus=tuple(gpu.sample(now) for gpu in gpus))
        watch.see(told, now, {gpu.index for gpu in gpus if gpu.held})
        signs = watch.signs
        alarms += signs is not None and bool(signs.levels or any(each.levels for each in signs.gpus))
    microseconds = (time.perf_counter() - began) * 1e6 / (hours * 3600.0 / CLEAN_EVERY_SECONDS)
    figures.add(f"samples of well GPUs with a sign ({hours} h of {GPUS} GPUs, drawn)", str(alarms))
    figures.add("a sample of such a node, drawn and judged", f"{microseconds:.0f} µs")
    return {"signs_of_well_gpus": Aim(value=alarms, aim=0)}


class _WellGpu:
    """An H200 as its driver reports it: with jobs for some hours, and nothing in between."""

    def __init__(self, index: int, dice: Random) -> None:
        self.index, self.held = index, False
        self._dice, self._until, self._corrected, self._replays = dice, 0.0, dice.randint(0, 10**6), 0

    def sample(self, now: float) -> GpuSample:
        dice = self._dice
        if now >= self._until:
            self.held, self._until = not self.held, now + dice.expovariate(1 / 5400.0)
        busy = self.held and dice.random() < 0.9
        self._corrected += dice.random() < 0.01
        self._replays += dice.random() < 0.001
        return GpuSample(
            index=self.index,
            uuid=f"u-{self.index}",
            model="NVIDIA H200",
            utilisation=dice.uniform(0.55, 1.0) if busy else 0.0,
            memory_used=dice.randint(20 << 30, 130 << 30) if self.held else dice.randint(0, 300 << 20),
            temperature=dice.uniform(55.0, 84.0) if busy else dice.uniform(28.0, 45.0),
            temperature_slowdown=87.0,
            clock_events=("sw-power-cap",) if busy else ("idle",),
            ecc_corrected=self._corrected,
            pcie_generation=5 if busy else dice.choice((1, 5)),
            pcie_width=16,
            pcie_replays=self._replays,
            nvlinks_active=18,
            rows_remapped_uncorrected=2,
        )
