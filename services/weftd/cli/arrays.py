"""Arrays on the command line: `A`, `A_3` and `A_[1-3]` in place of a job."""

from weft.client import Client, Refused
from weft.domain.arrays import ARRAY_PREFIX, JOB_PREFIX, IndicesError, indices_text, split_elements
from weft.domain.selection import is_pattern
from weft.domain.text import plural
from weft.messages.http import ArrayAsked, ArrayView, JobView
from weftd.cli import page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean


async def the_array(client: Client, wanted: str) -> tuple[str, str] | None:
    """The array that the text names, and the indices of the elements that it names (empty: all); None: it names a job.

    An array is found by its name if no job has that name.
    """
    try:
        array, indices = split_elements(wanted)
    except IndicesError as error:
        raise CliError(f"{wanted[:100]}: {error}", status=2) from error
    if indices is not None:
        return array, indices_text(indices)
    if wanted.startswith(ARRAY_PREFIX):
        return wanted, ""
    if wanted.startswith(JOB_PREFIX) or (await client.jobs(name=wanted, limit=1)).jobs:
        return None
    try:
        return (await client.array(wanted)).id, ""
    except Refused as error:
        if error.status in (400, 404):
            return None
        raise


async def job_or_array(client: Client, wanted: str) -> JobView | ArrayView:
    """The job that has this id or name, or else the array. Raises Refused."""
    try:
        return await client.job(wanted)
    except Refused as error:
        if error.status != 404:
            raise
        try:
            return await client.array(wanted)
        except Refused:
            raise error from None


async def whole_array(client: Client, wanted: str) -> ArrayView | None:
    """The array that the text names as a whole; None: it names a job, or elements."""
    if is_pattern(wanted) or wanted.startswith(JOB_PREFIX):
        return None
    try:
        if split_elements(wanted)[1] is not None:
            return None
        return await client.array(wanted)
    except (IndicesError, Refused):
        return None


async def show_instead(client: Client, wanted: str, *, json: bool) -> bool:
    """Show the array that the text names as a whole, which is no job; False: there is none."""
    if (found := await whole_array(client, wanted)) is None:
        return False
    if json:
        page.json_line(found)
    else:
        from weftd.cli.rendering.arrays import arrays_table  # imports rich, which is slow to import

        page.show(arrays_table([found], page.context(), tenants=False))
        page.note(f"its elements: `weft ps --elements --name '{clean(found.name)}-*'`; of one: `{clean(found.name)}_0`")
    return True


async def cancel(client: Client, wanted: str) -> ArrayAsked | None:
    """Cancel the elements that the text names; None: it names a job."""
    found = await the_array(client, wanted)
    return None if found is None else await client.cancel_array(found[0], indices=found[1])


async def requeue(client: Client, wanted: str, *, failed: bool) -> ArrayAsked | None:
    """Run the elements again that the text names; None: it names a job."""
    found = await the_array(client, wanted)
    if found is None and failed:
        raise CliError(f"{wanted[:100]} is no array: --failed works only on an array")
    return None if found is None else await client.requeue_array(found[0], indices=found[1], failed=failed)


def asked_sentence(asked: ArrayAsked) -> str:
    what = "will end" if asked.ask == "cancel" else "will go back to the queue"
    return f"{plural(asked.elements, 'element')} of {asked.id} {what}"
