"""The Python interface for programs with an event loop: the names of `weft`, as coroutines and asynchronous iterators.

    job = await weft.aio.run("python train.py", gpus=1)
    async for line in job.logs(follow=True): ...
    await job.result()

Each call opens a connection of its own, to the cluster of WEFT_URL and WEFT_TOKEN, else the one that `weft up` runs
here. A job keeps the cluster at which it was submitted. Every call raises Refused if the gateway refuses it,
Unreachable if no gateway answers in time, and ClientError if no cluster is known.
"""

import os
from collections.abc import Sequence

from weft.aio.function import Function, function
from weft.aio.job import Job, as_completed, connected
from weft.aio.service import Service, serve
from weft.aio.study import Study
from weft.aio.submitting import run, submit
from weft.aio.tuner import Tuner
from weft.client.local_cluster import Cluster
from weft.client.place import find_place
from weft.domain.job import JobState

__all__ = [
    "Cluster",
    "Function",
    "Job",
    "Service",
    "Study",
    "Tuner",
    "as_completed",
    "function",
    "jobs",
    "run",
    "serve",
    "submit",
]


async def jobs(
    *,
    states: Sequence[JobState | str] = (),
    name: str = "",
    labels: Sequence[str] = (),
    since: float | None = None,
    limit: int = 100,
) -> list[Job[None]]:
    """The newest jobs first, at most `limit`, which is at most 1000.

    `states`: such as `["running", "queued"]`, else all. `name`: also a pattern with `*` and `?`. `labels`: each
    `NAME=VALUE` or `NAME`; a job has all of them. `since`: submitted then or later, in seconds since 1970 (UTC).
    """
    place = find_place(os.environ)
    wanted = [JobState(state) for state in states]
    async with connected(place) as client:
        found = await client.jobs(states=wanted, name=name, labels=labels, since=since, limit=limit, benchmarks=False)
    return [Job(place, view.id, view.name, view=view) for view in found.jobs]
