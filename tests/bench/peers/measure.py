"""Weft beside other schedulers on this machine: `python -m tests.bench peers [--quick] [--only NAME …]`.

The same no-op by absolute path (`/bin/true`), 64 slots, nothing else on the machine. Each round measures Weft, the peer
and Weft again; the values are medians of three rounds, and of both measurements of Weft in each. `single`: jobs that
are submitted one by one; `array`: one array, or one graph of tasks. CPU counts all processes: the scheduler, its
servers, and the jobs. A peer that cannot be had is left out, with the reason.

At the end a scheduler of Weft is ended by kill -9 while jobs run: each job appends a line to a file, so that jobs that
were lost and jobs that ran twice are counted. The last line is JSON: the aims, and the seed of that moment.
"""

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from tests.bench import cpu
from tests.bench.figures import Aim, line_of
from tests.bench.peers.peer import PEERS, Driver, Peer, SkippedError, driving, installed
from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster
from weft.domain.job import FINAL, JobState
from weft.domain.spec import JobSpec

SLOTS, NO_OP = 64, "/bin/true"
SINGLES, ELEMENTS, ROUNDS, AUDITED = 1000, 10_000, 3, 500
QUICK_SINGLES, QUICK_ELEMENTS, QUICK_AUDITED = 20, 50, 20
AT_REST, AT_ONCE = 20, 16
TIMES_SLURM, TIMES_SLURM_ARRAYS = 5.0, 15.0
DRAIN_SECONDS_MAX = 600

Rows = dict[str, list[float]]
"""Each figure, and what it was in each round."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few jobs and one round: does it run at all?")
    parser.add_argument(
        "--only", nargs="+", choices=["none", *(peer.name for peer in PEERS)], help="peers to measure (default: all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed of the moment of kill -9 (default: 0)")
    asked = parser.parse_args(arguments)
    chosen = [peer for peer in PEERS if asked.only is None or peer.name in asked.only]
    with tempfile.TemporaryDirectory(prefix="weft-peers-") as home:
        aims = asyncio.run(measure(Path(home), chosen, quick=asked.quick, seed=asked.seed))
    print(line_of(aims, seed=asked.seed))
    return 0


async def measure(home: Path, peers: list[Peer], *, quick: bool, seed: int) -> dict[str, Aim]:
    """The aims, by name; each row is printed as soon as it is known."""
    singles, elements = (QUICK_SINGLES, QUICK_ELEMENTS) if quick else (SINGLES, ELEMENTS)
    own: Rows = defaultdict(list)
    others: dict[str, Rows] = {}
    settings = {"EXECUTOR_CPUS": "256"}
    async with embedded_cluster(home / "weft", nodes=1, gpus=SLOTS, settings=settings) as cluster:
        for peer in peers:
            try:
                python = await asyncio.to_thread(installed, peer, home)
                others[peer.name] = rows = defaultdict(list)
                for _ in range(1 if quick else ROUNDS):
                    await _weft(cluster, own, singles, elements)
                    with (home / f"{peer.name}.log").open("w") as log:
                        await asyncio.to_thread(_peer, peer, python, log, rows, singles, elements)
                    await _weft(cluster, own, singles, elements)
                _print(peer.name, rows, peer.unfair)
            except SkippedError as reason:
                others.pop(peer.name, None)
                print(f"{peer.name}: left out: {reason}", flush=True)
        if not own:
            await _weft(cluster, own, singles, elements)
        _print("weft", own, "durable, with a log and a record of each job")
        lost, twice = await _killed(cluster, home / "ran", QUICK_AUDITED if quick else AUDITED, random.Random(seed))
    print(f"weft after kill -9 of its scheduler: {lost} jobs lost, {twice} run twice", flush=True)
    return {
        **_against(own, others),
        "lost_after_kill_9": Aim(value=lost, aim=0),
        "twice_after_kill_9": Aim(value=twice, aim=0),
    }


def _peer(peer: Peer, python: Path, log: object, rows: Rows, singles: int, elements: int) -> None:
    with driving(peer, python, log) as driver:  # type: ignore[arg-type]
        _one_round(driver, rows, singles, elements)


def _one_round(driver: Driver, rows: Rows, singles: int, elements: int) -> None:
    one = driver.ask("singles", singles)
    seen = one.get("seen", [])
    rows["single/s"].append(singles / (one["seconds"] - sum(seen)))
    rows["CPU ms a single job"].append(one["cpu"] / (singles + len(seen)) * 1000)
    rows["submit → accepted, p50 ms"].append(median(one["accepted"]) * 1000)
    if seen:
        rows["at rest, submit → seen as done, p50 ms"].append(median(seen) * 1000)
    many = driver.ask("array", elements)
    rows["array/s"].append(elements / many["seconds"])
    rows["CPU ms an element"].append(many["cpu"] / elements * 1000)
    rows["memory, MiB"].append(many["memory"])


async def _weft(cluster: Cluster, rows: Rows, singles: int, elements: int) -> None:
    wanted, limit, accepted = _job("single"), asyncio.Semaphore(AT_ONCE), list[float]()

    async def one() -> None:
        async with limit:
            asked = time.monotonic()
            await cluster.client.submit(wanted)
            accepted.append(time.monotonic() - asked)

    before, began = await _used(cluster), time.monotonic()
    await asyncio.gather(*(one() for _ in range(singles)))
    await _drained(cluster)
    rows["single/s"].append(singles / (time.monotonic() - began))
    rows["CPU ms a single job"].append((await _used(cluster) - before) / singles * 1000)
    rows["submit → accepted, p50 ms"].append(median(accepted) * 1000)
    took = []
    for _ in range(AT_REST):
        asked = time.monotonic()
        await cluster.client.until_over((await cluster.client.submit(wanted)).id)
        took.append(time.monotonic() - asked)
    rows["at rest, submit → seen as done, p50 ms"].append(median(took) * 1000)
    before, began = await _used(cluster), time.monotonic()
    await cluster.client.submit(_job("array", array=f"0-{elements - 1}"))
    await _drained(cluster)
    rows["array/s"].append(elements / (time.monotonic() - began))
    rows["CPU ms an element"].append((await _used(cluster) - before) / elements * 1000)
    rows["memory, MiB"].append(sum(cpu.memory_of(pid) for pid in cluster.local.pids.values()))


async def _killed(cluster: Cluster, ran: Path, count: int, random_of: random.Random) -> tuple[int, int]:
    """How many jobs never ran, and how many ran more than once, over a kill -9 of the scheduler at a random moment."""
    noted = ["/bin/sh", "-c", f'echo "$WEFT_JOB_ID" >> {ran}']
    ids = [(await cluster.client.submit(_job("audited", command=noted))).id for _ in range(count)]
    await asyncio.sleep(random_of.uniform(0.0, 1.0))
    for name, pid in cluster.local.pids.items():
        if name.startswith("scheduler"):
            os.kill(pid, signal.SIGKILL)
    await _drained(cluster)
    times = await asyncio.to_thread(_counted, ran)
    return sum(times[job] == 0 for job in ids), sum(times[job] > 1 for job in ids)


def _counted(ran: Path) -> Counter[str]:
    return Counter(ran.read_text().split())


async def _used(cluster: Cluster) -> float:
    return sum((await cpu.used(cluster.local)).values())


async def _drained(cluster: Cluster) -> None:
    opened = [state for state in JobState if state not in FINAL]
    async with asyncio.timeout(DRAIN_SECONDS_MAX):
        while (await cluster.client.jobs(states=opened, limit=1)).jobs:  # noqa: ASYNC110 -- an empty queue is no event
            await asyncio.sleep(0.1)


def _job(name: str, *, command: list[str] | None = None, **fields: object) -> JobSpec:
    return spec(name, gpus=1, command=command or [NO_OP], role={"cpus": 1, "memory": "64MiB"}, **fields)


def _print(name: str, rows: Rows, remark: str) -> None:
    print(f"{name} ({remark}):")
    for what, values in rows.items():
        print(f"  {what}: {median(values):.4g}   ({', '.join(f'{value:.4g}' for value in values)})", flush=True)


def _against(own: Rows, others: dict[str, Rows]) -> dict[str, Aim]:
    """Ratios of Weft's rates to those of the peers that were measured."""
    least = {
        ("slurm", "single/s"): TIMES_SLURM,
        ("slurm", "array/s"): TIMES_SLURM_ARRAYS,
        ("hyperqueue", "array/s"): 1.0,
        ("ray", "single/s"): 1.0,
    }
    return {
        f"{what.removesuffix('/s')}_times_{name}": Aim(
            value=round(median(own[what]) / median(others[name][what]), 2), aim=aim, at_least=True
        )
        for (name, what), aim in least.items()
        if name in others
    }
