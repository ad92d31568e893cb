"""Following an array until all its elements are over: the output of a few elements, and the end of each."""

import asyncio
import sys

from weft.client import Client
from weft.messages.http import Submitted
from weftd.cli import page
from weftd.cli.jobs.logs import JOBS_MAX, follow_jobs
from weftd.cli.jobs.wait import exit_status_of_array, until_array_over
from weftd.cli.rendering.arrays import ended_line


async def follow_array(client: Client, submitted: Submitted) -> int:
    """Returns 0 if all elements succeed, else the highest exit status of them. After Ctrl-C they go on."""
    array = await client.array(submitted.id)
    if array.elements > JOBS_MAX:
        one = f"`weft logs {array.name}_3` shows that of one"
        page.remark(f"{array.name} has {array.elements} elements: their output is not shown here, {one}")
    try:
        if array.elements <= JOBS_MAX:
            elements = (await client.elements(array.id)).jobs
            await follow_jobs(client, [await client.job(one.id) for one in elements])
        over = await until_array_over(client, array.id)
    except asyncio.CancelledError:
        goes_on = f"{array.name} goes on: `weft wait {array.id}` waits for it, `weft cancel {array.id}` ends it"
        page.remark(f"\n{goes_on}")
        raise
    page.console(sys.stderr).print(ended_line(over))
    return await exit_status_of_array(client, over)
