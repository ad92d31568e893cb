"""Submitting one job, for programs with an event loop."""

import os
from collections.abc import Sequence
from typing import Unpack

from weft.aio.job import Job, connected
from weft.client import Refused
from weft.client.job_fields import Given, JobFields, as_given, encoded, specification
from weft.client.place import find_place


async def submit(spec: Given | None = None, /, *, key: str | None = None, **fields: Unpack[JobFields]) -> Job[None]:
    """Submit one job, and return at once.

    `spec`: a mapping with the fields of a job file, or the path of such a file in YAML or JSON; `fields` are added, and
    replace those of `spec`. `key`: submitting again with the same key returns the same job. A job without a `name` is
    named by its command, and a process without a `workdir` runs in the current folder. Raises Refused, with the `field`
    and its `value`, if the job is not accepted, and OSError if the file cannot be read.
    """
    asked = specification(spec, fields, cwd=os.getcwd())
    place = find_place(os.environ)
    try:
        async with connected(place) as client:
            submitted = await client.submit(encoded(asked), key=key)
    except Refused as error:
        raise as_given(error, asked, fields) from None
    return Job(place, submitted.id, submitted.name, notes=submitted.notes)


async def run(command: str | Sequence[str], /, *, key: str | None = None, **fields: Unpack[JobFields]) -> Job[None]:
    """Submit a job that runs this command, and return at once; `fields` and errors are those of `submit`.

    A text is split into words as a shell does, but no shell runs it: pass `["sh", "-c", text]` for that.
    """
    return await submit({"command": command}, key=key, **fields)
