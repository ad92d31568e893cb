"""How long a plan of 2,048 GPUs of three models takes, the memory for it, and whether every job that fits starts.

All jobs wait at once, no two of them alike; then all that got something run, and the next plan is made. Seconds are of
processor time: the planner is one thread that waits for nothing, and the machine is shared. Each size runs in a process
of its own, so that its peak of memory is its own.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from msgspec import Struct, structs

from tests.bench.kinds.ground import CLUSTER, MIX, SIZE_MOST, applications
from weft.planning.partition import ElasticJob, Partition, Rules, Server
from weft.planning.partition.weft import weft

TIMES = 32  # as many nodes as in Sia's cluster
SIZES = {1000: 1.0, 4000: 5.0}  # jobs, and the most seconds for a plan of them
WAITED_S = 600.0
UNLIKE = 0.3  # how far the speed of a job may be from that of its application


class PlanningRun(Struct, frozen=True, kw_only=True):
    """`first_s`, `next_s`: seconds for the two plans; `memory_mib`: the peak beyond what the process had before.

    `waiting`: jobs that the first plan did not start; `idle`: GPUs that it gave to nobody.
    """

    jobs: int
    first_s: float
    next_s: float
    memory_mib: float
    waiting: int
    idle: int


def run(jobs: int, seed: int, data: Path) -> PlanningRun:
    command = [sys.executable, "-m", "tests.bench.kinds.planning", str(jobs), str(seed), str(data)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return PlanningRun(jobs=jobs, **json.loads(found))


def servers() -> list[Server]:
    return [
        Server(id=f"{group.model}-{at:03}", amounts=(float(group.gpus_per_node), 0.0, 0.0), model=group.model)
        for group in CLUSTER.groups
        for at in range(group.nodes * TIMES)
    ]


def waiting(jobs: int, dice: Random, data: Path) -> list[ElasticJob]:
    apps = applications(data)
    names = dice.choices([*MIX], weights=[*MIX.values()], k=jobs)
    return [
        ElasticJob(
            job_id=f"j{number:05}",
            each=(1.0, 0.0, 0.0),
            least=1,
            most=SIZE_MOST,
            speeds={
                model: tuple(speed * unlike for speed in speeds)
                for model, speeds in apps[name].speeds.items()
                for unlike in [1 + dice.uniform(-UNLIKE, UNLIKE)]
            },
            restart_s=apps[name].restart_s,
            waited_s=WAITED_S,
        )
        for number, name in enumerate(names)
    ]


def after(jobs: Sequence[ElasticJob], found: Partition) -> list[ElasticJob]:
    """The jobs as they run then; those that got nothing have waited longer."""
    return [
        structs.replace(
            job,
            now=found.sizes[job.job_id],
            on=found.on.get(job.job_id, {}),
            model=found.models.get(job.job_id, ""),
            waited_s=0.0 if found.sizes[job.job_id] else job.waited_s + 60.0,
        )
        for job in jobs
    ]


def _measured(count: int, seed: int, data: Path) -> dict[str, float]:
    there, jobs = servers(), waiting(count, Random(seed), data)
    weft(jobs[:8], there, Rules())  # loads the solver
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took = []
    for plan in range(2):
        began = time.process_time()
        found = weft(jobs, there, Rules())
        took.append(time.process_time() - began)
        jobs = after(jobs, found)
        if not plan:
            sizes = found.sizes.values()
    return {
        "first_s": took[0],
        "next_s": took[1],
        "memory_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "waiting": sum(not size for size in sizes),
        "idle": int(sum(server.amounts[0] for server in there)) - sum(sizes),
    }


if __name__ == "__main__":
    print(json.dumps(_measured(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
