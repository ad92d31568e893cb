"""Ray: a head with a GPU for each slot; a task starts the program. Workers are used again, state is in memory."""

import subprocess

import ray
from line import NO_OP, SLOTS, at_rest, one_by_one, serve

ray.init(num_cpus=SLOTS, num_gpus=SLOTS, include_dashboard=False, logging_level="ERROR")


@ray.remote(num_gpus=1, num_cpus=1, max_retries=0)
def no_op():
    return subprocess.call([NO_OP])


def singles(count):
    return {**one_by_one(count, no_op.remote, ray.get), "seen": at_rest(no_op.remote, ray.get)}


serve(singles, lambda count: ray.get([no_op.remote() for _ in range(count)]) and None, durable=False)
ray.shutdown()
