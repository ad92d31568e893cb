"""`scontrol requeue` and `scontrol show hostnames`: the part of it that programs call in their jobs."""

import os
import sys
from collections.abc import Sequence

from weft.client import Refused
from weft.domain.arrays import indices_text
from weftd.cli.cli_error import CliError
from weftd.cli.slurm.numbers import reference_of
from weftd.cli.slurm.reading import cluster


async def scontrol(words: Sequence[str]) -> int:
    match list(words):
        case ["show", "hostnames" | "hostname", *lists]:
            hosts = lists[0] if lists else os.environ.get("SLURM_JOB_NODELIST", "")
            sys.stdout.write("".join(f"{host}\n" for host in hosts.split(",") if host))
            return 0
        case ["requeue", *numbers] if numbers:
            for number in ",".join(numbers).split(","):
                await _requeue(number)
            return 0
    raise CliError(f"expected requeue JOB or show hostnames, not {' '.join(words)[:60]!r}")


async def _requeue(number: str) -> None:
    reference = reference_of(number, os.environ)
    if (reference.elements or (reference.job,))[0] == os.environ.get("WEFT_JOB_ID"):
        # A job has no token, and needs none: it is asked to save its work because it is about to be queued again.
        print(f"scontrol: job {number} is queued again if it was preempted, moved or requeued", file=sys.stderr)
        return
    async with cluster() as client:
        if reference.indices:
            await client.requeue_array(reference.array, indices=indices_text(reference.indices))
            return
        try:
            await client.requeue(reference.job)
        except Refused as error:
            if error.status != 404:
                raise
            await client.requeue_array(reference.array)
