"""The remedy for common failures of a job."""

import os

from weft.client.failure import LastWords, timeout_of
from weft.domain.job import JobState
from weft.messages.http import JobView
from weftd.cli.formatting import clean


def hint(job: JobView, words: LastWords | None) -> str:
    """The remedy for a command that is not there, as a job does not get the environment of the shell that submitted it,
    and for a rank that waited for others in vain."""
    sentence = job.ended_for.sentence if job.ended_for is not None else ""
    told = words.lines if words is not None else ()
    if job.state is JobState.FAILED and (timeout := timeout_of(words)):
        return f"{timeout}: it waited for another rank, whose log may say why; `hang` in the job file finds it sooner"
    missing = "command not found" in sentence or any("ModuleNotFoundError" in line for line in told)
    if job.state is not JobState.FAILED or not missing:
        return ""
    if active := os.environ.get("VIRTUAL_ENV"):
        return f"a job does not get the environment of your shell: `weft run --venv` takes {clean(active)} along"
    return "a job does not get the environment of the shell that submits it: `weft run --help` says what to do"
