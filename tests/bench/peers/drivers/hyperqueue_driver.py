"""HyperQueue: one server and one worker with a core for each slot. Its wheel has no way to switch the journal on.

Its client asks once a second whether a job has ended: that is what it takes to be seen as done.
"""

import tempfile
from pathlib import Path

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
from line import NO_OP, SLOTS, at_rest, one_by_one, serve

with tempfile.TemporaryDirectory() as home, LocalCluster(server_dir=home) as cluster:
    cluster.start_worker(WorkerConfig(cores=SLOTS))
    client = cluster.client()

    def submit(tasks=1):
        job = Job(default_workdir=Path(home))
        for n in range(tasks):
            job.program([NO_OP], stdout=Path(home, f"{n}.out"), stderr=Path(home, f"{n}.err"))
        return client.submit(job)

    def wait(*jobs):
        client.wait_for_jobs(jobs)

    def singles(count):
        return {**one_by_one(count, submit, lambda jobs: wait(*jobs)), "seen": at_rest(submit, wait, 5)}

    serve(singles, lambda count: wait(submit(count)), durable=False)
