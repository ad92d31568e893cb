"""How long it takes to plan a partition, and the memory for it, as jobs arrive and end.

Each size runs in a process of its own, so that its peak of memory is its own. Seconds are of processor time: the
planner is one thread that waits for nothing, and the machine is shared.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from tests.bench.figures import Figures, quantile
from weft.planning.partition import ElasticJob, Partition, Rules, Server
from weft.planning.partition.weft import weft

SIZES = ((128, 100, 60), (2048, 1000, 30))  # servers, jobs, events
QUICK = ((128, 100, 20), (2048, 1000, 8))
AIMS = {(128, 100): 0.05, (2048, 1000): 1.0}
KINDS = ((1.0, 4.0, 16.0), (1.0, 8.0, 32.0), (2.0, 8.0, 64.0), (0.0, 4.0, 16.0), (0.0, 16.0, 32.0))
LEFT_OUT = 10  # of a hundred: what the servers do not have for elastic jobs


class PlanningFigure(Struct, frozen=True, kw_only=True):
    """Seconds for one partition, and the most memory of the process in MiB, with what it had before it planned.

    `kept`: how many of the partitions were none; `relaxed`: how many gave up a rule.
    """

    servers: int
    jobs: int
    events: int
    p50_s: float
    p99_s: float
    max_s: float
    memory_mib: float
    before_mib: float
    kept: int
    relaxed: int
    aim_s: float = float("inf")


def measure_planning(seed: int, *, quick: bool = False) -> list[PlanningFigure]:
    """One figure for each size of pool."""
    return [_alone(seed, servers, jobs, events) for servers, jobs, events in (QUICK if quick else SIZES)]


def add_planning(figures: Figures, found: list[PlanningFigure]) -> None:
    for it in found:
        figures.add(
            f"a partition of {it.servers:,} servers for {it.jobs:,} jobs, {it.events} arrivals and ends",
            f"p50 {it.p50_s * 1000:.0f} ms, p99 {it.p99_s * 1000:.0f} ms, most {it.max_s * 1000:.0f} ms;"
            f" {it.memory_mib:.0f} MiB, {it.memory_mib - it.before_mib:.0f} of them for planning",
            f"p99 < {it.aim_s * 1000:.0f} ms",
        )
        figures.aim(f"planning-p99-ms-{it.servers}x{it.jobs}", it.p99_s * 1000, it.aim_s * 1000)


def _alone(seed: int, servers: int, jobs: int, events: int) -> PlanningFigure:
    command = [sys.executable, "-m", "tests.bench.planning_partitions", *map(str, (seed, servers, jobs, events))]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return PlanningFigure(servers=servers, jobs=jobs, events=events, **found, aim_s=AIMS.get((servers, jobs), 1.0))


def pool(servers: int, dice: Random) -> list[Server]:
    """Three quarters have GPUs, of which some are slow; other jobs hold something on every tenth."""
    found = []
    for j in range(servers):
        amounts = (8.0, 96.0, 512.0) if j % 4 else (0.0, 128.0, 256.0)
        fast = 8 if j % 3 else 6
        if dice.randrange(100) < LEFT_OUT:
            amounts = (amounts[0] and 4.0, amounts[1] / 2, amounts[2] / 2)
            fast = 4
        slow = int(amounts[0]) - fast
        bins = tuple((score, number) for score, number in ((1.0, fast), (1.2, slow)) if number > 0)
        found.append(Server(id=f"s{j:04}", amounts=amounts, bins=bins if amounts[0] else ()))
    return found


def arrival(number: int, per_job: float, dice: Random) -> ElasticJob:
    """A job whose most is about one to four times its part of the pool, so that there is never enough for all."""
    most = max(2, round(per_job * dice.choice((0.5, 1, 2, 4))))
    least = max(1, most // dice.choice((2, 4, 8)))
    exponent = dice.choice((0.5, 0.7, 0.85, 1.0))
    return ElasticJob(
        job_id=f"j{number:05}",
        each=dice.choice(KINDS),
        least=least,
        most=most,
        speeds={"": tuple(n**exponent for n in range(least, most + 1))},
        weight=dice.choice((1.0, 1.0, 1.0, 2.0)),
        restart_s=dice.choice((0.0, 0.0, 30.0, 120.0)),
    )


def after(jobs: Mapping[str, ElasticJob], found: Partition) -> dict[str, ElasticJob]:
    return {
        job_id: replace(
            job,
            now=found.sizes[job_id],
            on=found.on.get(job_id, {}),
            waited_s=0.0 if found.sizes[job_id] else job.waited_s + 60.0,
        )
        for job_id, job in jobs.items()
    }


def _run(seed: int, servers: int, jobs: int, events: int) -> dict[str, float]:
    dice, rules, plan = Random(seed), Rules(), weft
    there = pool(servers, dice)
    per_job = 8 * servers / jobs
    number = 0
    running: dict[str, ElasticJob] = {}
    plan([], there, rules)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    while number < jobs:  # fills up in a few large steps, which are not measured
        for _ in range(max(1, jobs // 10)):
            running[f"j{number:05}"] = arrival(number, per_job, dice)
            number += 1
        running = after(running, plan(list(running.values()), there, rules))
    took, kept, relaxed = [], 0, 0
    for _ in range(events):
        if len(running) > jobs or (dice.random() < 0.5 and len(running) > 0.95 * jobs):
            del running[dice.choice([*running])]
        else:
            running[f"j{number:05}"] = arrival(number, per_job, dice)
            number += 1
        began = time.process_time()
        found = plan(list(running.values()), there, rules)
        took.append(time.process_time() - began)
        kept, relaxed = kept + bool(found.kept), relaxed + bool(found.relaxed)
        running = after(running, found)
    return {
        "p50_s": quantile(took, 0.5),
        "p99_s": quantile(took, 0.99),
        "max_s": max(took),
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "before_mib": before,
        "kept": kept,
        "relaxed": relaxed,
    }


if __name__ == "__main__":
    print(json.dumps(_run(*map(int, sys.argv[1:]))))
