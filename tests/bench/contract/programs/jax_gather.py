"""Initialises JAX's distributed runtime and gathers a number of each process. `--detect`: without arguments."""

import os
import sys

import jax
from jax.experimental import multihost_utils

jax.config.update("jax_platforms", "cpu")
if "--detect" in sys.argv:
    jax.distributed.initialize()
else:
    jax.distributed.initialize(
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        int(os.environ["WEFT_WORLD_SIZE"]),
        int(os.environ["WEFT_RANK"]),
    )

total = int(multihost_utils.process_allgather(jax.numpy.array([jax.process_index() + 1])).sum())
sys.stdout.write(
    f"rank {jax.process_index()} of {jax.process_count()} weights {total}\n"
)  # in one piece: ranks share the pipe
