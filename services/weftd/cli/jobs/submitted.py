"""The end of `weft run` and `weft submit`: show the submitted job, and follow it if asked."""

from weft.client import Client
from weft.domain.arrays import ARRAY_PREFIX
from weft.messages.http import Submitted
from weftd.cli import page


async def follow_submitted(client: Client, submitted: Submitted) -> int:
    """Follow a job or an array to its end; returns the exit status for the command. A schedule has no end."""
    if submitted.next_run_at is not None:
        page.note(submitted_line(submitted))
        return 0
    if submitted.id.startswith(ARRAY_PREFIX):
        from weftd.cli.jobs.following_array import follow_array  # slow to import

        return await follow_array(client, submitted)
    from weftd.cli.jobs.following import follow

    return await follow(client, submitted)


def submitted_line(submitted: Submitted) -> str:
    """The line that `weft run` prints after a submission."""
    if submitted.next_run_at is not None:
        known = "" if submitted.created else " is a schedule already"
        when = page.context().zoned(submitted.next_run_at)
        return f"{submitted.name}{known}: its next run is due {when}, `weft schedules` lists all"
    again = "" if submitted.created else " had been submitted with this key before"
    if submitted.id.startswith(ARRAY_PREFIX):
        many = f", {submitted.elements} elements" if submitted.elements else ""
        return (
            f"{submitted.name}{many}{again}: `weft ps` shows it, `weft logs {submitted.id}_3` the output of element 3"
        )
    return f"{submitted.name}{again}: `weft logs -f {submitted.id}` follows it, `weft ps` shows all"
