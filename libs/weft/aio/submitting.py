"""Submitting one job, for programs with an event loop."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from weft.aio.job import Job, connected
from weft.client import Refused
from weft.client.job_fields import Given, JobFields, as_given, encoded, is_contained, specification
from weft.client.place import find_place


async def submit(
    spec: Given | None = None,
    /,
    *,
    key: str | None = None,
    sync: str | os.PathLike[str] | None = None,
    venv: bool = False,
    **fields: Unpack[JobFields],
) -> Job[None]:
    """Submit one job, and return at once.

    `spec`: a mapping with the fields of a job file, or the path of such a file in YAML or JSON; `fields` are added, and
    replace those of `spec`. `key`: submitting again with the same key returns the same job. `sync`: the files of this
    folder go along and are where the job runs. `venv`: a process runs in the virtual environment of this program. A job
    without a `name` is named by its command, and a process without a `workdir` runs in the current folder. Raises
    Refused, with the `field` and its `value`, if the job is not accepted, and OSError if the file cannot be read.
    """
    asked = specification(spec, fields, cwd=os.getcwd() if sync is None else "")
    if venv:
        asked["env"] = {**_virtual_environment(asked), **asked.get("env", {})}
    place = find_place(os.environ)
    try:
        async with connected(place) as client:
            if sync is not None:
                from weft import packing  # slow to import

                packed = await asyncio.to_thread(packing.pack, os.fspath(sync))
                await packing.store(client, packed)
                asked["context"] = packed.digest
            submitted = await client.submit(encoded(asked), key=key)
    except Refused as error:
        raise as_given(error, asked, fields) from None
    return Job(place, submitted.id, submitted.name, notes=submitted.notes)


async def run(
    command: str | Sequence[str],
    /,
    *,
    key: str | None = None,
    sync: str | os.PathLike[str] | None = None,
    venv: bool = False,
    **fields: Unpack[JobFields],
) -> Job[None]:
    """Submit a job that runs this command, and return at once; all else is as of `submit`.

    A text is split into words as a shell does, but no shell runs it: pass `["sh", "-c", text]` for that.
    """
    return await submit({"command": command}, key=key, sync=sync, venv=venv, **fields)


def _virtual_environment(asked: Mapping[str, Any]) -> dict[str, str]:
    """The variables of the virtual environment whose Python runs this program, else of the active one."""
    from weft.packing import venv_of  # slow to import

    if is_contained(asked):
        raise Refused(0, "venv", "is for processes: a container has the environment of its image", value=True)
    own = {} if sys.prefix == sys.base_prefix else {"VIRTUAL_ENV": sys.prefix}
    return venv_of({**os.environ, **own})
