"""Dask: one process of 64 threads with a GPU resource for each; a task starts the program. State is in memory."""

import subprocess

from distributed import Client, LocalCluster
from line import NO_OP, SLOTS, at_rest, one_by_one, serve


def no_op(_):
    return subprocess.call([NO_OP])


if __name__ == "__main__":
    cluster = LocalCluster(n_workers=1, threads_per_worker=SLOTS, resources={"GPU": SLOTS}, dashboard_address=None)
    client = Client(cluster)

    def submit():
        return client.submit(no_op, 0, pure=False, resources={"GPU": 1})

    def wait(future):
        future.result()

    def array(count):
        client.gather(client.map(no_op, range(count), pure=False, resources={"GPU": 1}))

    def singles(count):
        return {**one_by_one(count, submit, client.gather), "seen": at_rest(submit, wait)}

    serve(singles, array, durable=False)
    client.close()
    cluster.close()
