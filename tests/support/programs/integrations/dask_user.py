"""A program of a person who uses Dask."""

import os
import time

from distributed import Client

import weft
from weft.integrations.dask import WeftCluster


def square(number: int) -> tuple[int, str]:
    time.sleep(0.2)
    return number * number, os.environ["WEFT_JOB_ID"]


if __name__ == "__main__":
    with (
        WeftCluster(2, host="127.0.0.1", cpus=0.5, memory="512MiB", name="dasks") as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2, timeout=120)
        results = client.gather(client.map(square, range(12)))
        assert [value for value, _ in results] == [number * number for number in range(12)]
        jobs = {job for _, job in results}
        assert len(jobs) == 2, jobs
        cluster.scale(1)
        while len(weft.jobs(name="dasks", states=["queued", "placed", "starting", "running"])) > 1:
            time.sleep(0.2)
    for job in jobs:
        weft.Job.find(job).wait(60)
    print("done")
