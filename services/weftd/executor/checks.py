"""`python -m weftd.executor.checks`: what this node lacks, by the executor's own settings and start-up code, as JSON.

It starts no run, takes no lock of the executor's home, and may run beside an executor.
"""

import asyncio
import os
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from weft.bus import BusError
from weft.bus.nats import NatsBus
from weft.domain.quantity import size_text
from weft.domain.text import listed, plural
from weft.gpus import inventory_in_time
from weft.messages.checks import Check, fine, problem, warning
from weft.service import SettingsError, load
from weft.service.keys import nats_keys
from weft.sharing.native import HOOK as HOOK_LIBRARY
from weft.sharing.native import NotBuilt, build
from weftd.executor.logs.retention import FREE_PART_MIN
from weftd.executor.runs import RuntimeUnavailableError
from weftd.executor.runtime.limits.cgroup import find_cgroups
from weftd.executor.settings import ExecutorSettings
from weftd.executor.shares.backend import TIME_SLICE

CONNECT_SECONDS_MAX = 3.0
OPEN_FILES_MIN = 4096
LOW_DISK_PART = 0.1


async def checks(environ: Mapping[str, str]) -> list[Check]:
    """Every check of the node, in the order in which its executor needs things."""
    try:
        settings = load(ExecutorSettings, prefix="EXECUTOR_", environ=environ)
    except SettingsError as error:
        lines = str(error).splitlines()
        return [problem("settings", line, "correct it: docs/operating.md has every setting") for line in lines]
    found = [*_safety(settings), _disk(settings.home), _open_files()]
    return [*found, await _gpus(settings), await _limits(settings), await _shares(settings), await _nats(settings)]


def _safety(settings: ExecutorSettings) -> Iterator[Check]:
    if settings.fencing and settings.guard:
        yield fine("fence", f"jobs end {settings.fence_seconds:g} s after the node was cut off, at the latest")
    else:
        names = [name for name, on in (("FENCING", settings.fencing), ("GUARD", settings.guard)) if not on]
        named = listed([f"EXECUTOR_{name}" for name in names])
        yield problem("fence", f"{named} is off: jobs may run twice", f"unset {named}")


def _disk(home: Path) -> Check:
    there = next((path for path in (home, *home.absolute().parents) if path.is_dir()), Path("/"))
    if not os.access(there, os.W_OK):
        return problem("disk", f"{there} cannot be written", "give the executor's user the folder EXECUTOR_HOME")
    disk = shutil.disk_usage(there)
    sentence = f"{size_text(disk.free)} of {size_text(disk.total)} are free for runs and logs in {home}"
    if disk.free < disk.total * FREE_PART_MIN:
        return problem("disk", f"{sentence}: nothing new starts here", "make room on it")
    if disk.free < disk.total * LOW_DISK_PART:
        return warning("disk", sentence, "make room, or lower EXECUTOR_LOGS_BYTES_MAX")
    return fine("disk", sentence)


def _open_files() -> Check:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    sentence = f"a process here may have {most:,} open files; each run takes two"
    if most != resource.RLIM_INFINITY and most < OPEN_FILES_MIN:
        return warning("open files", sentence, f"raise the limit to {OPEN_FILES_MIN:,} (ulimit -n)")
    return fine("open files", sentence)


async def _gpus(settings: ExecutorSettings) -> Check:
    if settings.emulated_gpus:
        return fine("gpus", f"{plural(settings.emulated_gpus, 'emulated GPU')}, by EXECUTOR_EMULATED_GPUS")
    found = await inventory_in_time(stop=asyncio.Event())
    if found is None:
        return problem("gpus", "NVIDIA's driver does not answer", "look into dmesg; reset the GPU or reboot the node")
    if not found:
        sentence = "NVIDIA's driver (NVML) offers no GPU: only jobs without GPUs run here"
        return warning("gpus", sentence, "install the driver, or see that nvidia-smi lists the GPUs")
    models = listed(sorted({gpu.model for gpu in found}))
    return fine("gpus", f"{plural(len(found), 'GPU')}: {models}")


async def _limits(settings: ExecutorSettings) -> Check:
    """Checks of how jobs are run and limited to their requests."""
    if settings.runtime == "docker":
        return await _engine()
    if not settings.cgroups:
        return warning(
            "limits", "EXECUTOR_CGROUPS is off: CPU and memory limits of jobs are not enforced", "set it to true"
        )
    missing = find_cgroups(f"{settings.node_id}-doctor").not_enforced
    if missing:
        sentence = f"control groups cannot be written: Weft does not enforce for jobs: {listed(missing)}"
        return warning("limits", sentence, "run the executor as root, or in a group that is delegated to it")
    return fine("limits", "control groups enforce the CPU and memory limits of jobs")


async def _engine() -> Check:
    from weftd.executor.runtime.docker.engine import DockerEngine  # only here: it loads the Docker SDK

    try:
        engine = await asyncio.to_thread(DockerEngine)
        try:
            about = await engine.call(lambda: dict(engine.client.version()))
        finally:
            engine.close()
    except RuntimeUnavailableError as error:
        return problem("engine", str(error), "start the engine, and let the executor reach its socket (DOCKER_HOST)")
    return fine("engine", f"Docker {about.get('Version', 'of an unknown version')} answers")


async def _shares(settings: ExecutorSettings) -> Check:
    if settings.shares == TIME_SLICE:
        return warning("shares", "EXECUTOR_SHARES is time-slice: shares of a GPU are not enforced", "set it to auto")
    built = await asyncio.to_thread(build, HOOK_LIBRARY)
    if isinstance(built, NotBuilt):
        return warning("shares", f"shares of a GPU are not enforced: {built.reason}", "install a C compiler")
    return fine("shares", "shares of a GPU are enforced")


async def _nats(settings: ExecutorSettings) -> Check:
    url = settings.connections.nats_url
    found = fine("nats", "this node reaches NATS, and its password is accepted")
    try:
        async with NatsBus.connect(
            url,
            name=f"doctor-{settings.node_id}",
            **nats_keys(settings.connections),
            connect_seconds_max=CONNECT_SECONDS_MAX,
        ):
            pass
    except* (BusError, SettingsError, OSError) as errors:
        sentence = str(errors.exceptions[0])
        found = problem("nats", sentence, "start NATS, open its port, or give the node its credentials (weft setup)")
    return found


def main() -> int:
    found = asyncio.run(checks(os.environ))
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    sys.stdout.flush()
    os._exit(0)  # a driver that hangs keeps its thread


if __name__ == "__main__":
    main()
