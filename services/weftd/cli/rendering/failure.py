"""The remedy for the commonest first failure of a job."""

import os

from weft.client.failure import LastWords
from weft.domain.job import JobState
from weft.messages.http import JobView
from weftd.cli.formatting import clean


def hint(job: JobView, words: LastWords | None) -> str:
    """The remedy for the commonest first failure: a job does not get the environment of the shell that submitted it."""
    sentence = job.ended_for.sentence if job.ended_for is not None else ""
    told = words.lines if words is not None else ()
    missing = "command not found" in sentence or any("ModuleNotFoundError" in line for line in told)
    if job.state is not JobState.FAILED or not missing:
        return ""
    if active := os.environ.get("VIRTUAL_ENV"):
        return f"a job does not get the environment of your shell: `weft run --venv` takes {clean(active)} along"
    return "a job does not get the environment of the shell that submits it: `weft run --help` says what to do"
