"""Finds the runs on this node by the process runtime's files, or by the labels of containers.

It needs nothing else of a runtime, so telemetry goes on when the executor does not.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Struct

from weft.cgroups.files import read_text
from weftd.telemetry.thinking.readings import FoundRun

logger = logging.getLogger(__name__)

RUNS_MAX = 1024  # of one node in a sample
PID_MAX = 1 << 22  # the kernel gives no higher number


class Finder(Protocol):
    async def find(self) -> list[FoundRun]:
        """The started runs in order, some of which may have ended; the last known ones if they cannot be read now."""


class _Record(Struct, frozen=True, kw_only=True):
    """The fields of the process runtime's run.json that we read. The run's job can write to this file."""

    job_id: str
    epoch: Annotated[int, Meta(ge=0, lt=1 << 31)]
    rank: Annotated[int, Meta(ge=0, lt=1 << 31)]
    pid: Annotated[int, Meta(ge=0, le=PID_MAX)] = 0
    cgroups: dict[str, str] = {}


_Version = tuple[int, int, int]  # inode, when it was written, length: a file may change twice in one tick


class ProcessRuns:
    """Runs of the process runtime: `<home>/runs/<job>-<epoch>-<rank>/run.json`."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "runs"
        self._known: dict[str, tuple[_Version, FoundRun | None]] = {}

    async def find(self) -> list[FoundRun]:
        """The runs. It takes microseconds per run: a file is read again only after it was written."""
        try:
            names = sorted(os.listdir(self._folder))[:RUNS_MAX]
        except OSError:
            names = []  # no run has ever started here
        self._known = {name: self._seen(name) for name in names}
        return [run for _, run in self._known.values() if run is not None]

    def _seen(self, name: str) -> tuple[_Version, FoundRun | None]:
        path = f"{self._folder}/{name}/run.json"
        try:
            status = os.lstat(path)
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._known.get(name)
            if known is not None and known[0] == version:
                return known
            record = msgspec.json.decode(read_text(path) or "", type=_Record)
        except (OSError, msgspec.DecodeError):
            return (0, 0, 0), None  # an incomplete folder: being made, or being removed
        if name != f"{record.job_id.replace('/', '_')}-{record.epoch}-{record.rank}":
            return version, None  # its job has overwritten it with the name of another run
        return version, _process_run(record)


def _process_run(record: _Record) -> FoundRun | None:
    if record.pid <= 0:
        return None  # not started yet
    return FoundRun(
        job_id=record.job_id,
        epoch=record.epoch,
        rank=record.rank,
        pid=record.pid,
        cgroups={"" if name == "unified" else name: folder for name, folder in record.cgroups.items()},
        leads_session=True,
    )


class DockerClient(Protocol):
    """The methods of the Docker SDK's low-level client that we use. They block, and have a time limit of their own."""

    def containers(self, *, filters: dict[str, Any]) -> list[dict[str, Any]]: ...
    def inspect_container(self, container: str, /) -> dict[str, Any]: ...


class DockerRuns:
    """Runs of the docker runtime: running containers of this node, by their `weft.…` labels.

    `cluster`: only that cluster's containers; empty: those of every cluster with a node of this name on this engine.
    """

    def __init__(
        self,
        connect: Callable[[], DockerClient],
        *,
        node_id: str,
        cluster: str = "",
        errors: tuple[type[Exception], ...] = (OSError,),
    ) -> None:
        self._connect = connect
        self._engine: DockerClient | None = None
        self._labels = [f"weft.node={node_id}", "weft.job", *([f"weft.cluster={cluster}"] if cluster else [])]
        self._errors = errors
        self._known: dict[str, FoundRun] = {}  # by container id
        self._failing = False

    async def find(self) -> list[FoundRun]:
        try:
            self._known = await asyncio.to_thread(self._look)
            self._failing = False
        except self._errors as error:
            if not self._failing:
                logger.warning("the Docker engine does not answer, so new runs are not sampled: %s", error)
            self._failing = True
        return sorted(self._known.values(), key=lambda run: run.key)

    def _look(self) -> dict[str, FoundRun]:
        """Make one request for all containers, and one for each new container."""
        engine = self._engine = self._engine or self._connect()
        filters = {"label": self._labels, "status": ["running", "paused"]}
        found = {}
        for container in engine.containers(filters=filters):
            run = self._known.get(container["Id"]) or _met(engine, container)
            if run is not None:
                found[container["Id"]] = run
        return found


def _met(engine: DockerClient, container: Mapping[str, Any]) -> FoundRun | None:
    labels = container["Labels"]
    try:
        return FoundRun(
            job_id=labels["weft.job"],
            epoch=int(labels["weft.epoch"]),
            rank=int(labels["weft.rank"]),
            pid=int(engine.inspect_container(container["Id"])["State"]["Pid"]),
        )
    except (KeyError, ValueError, TypeError):
        return None  # a container of another origin with our labels


def docker_runs(node_id: str, *, cluster: str = "", seconds_max: int = 5) -> DockerRuns:
    """The runs of the engine that the environment names, found as Docker's own programs find it."""
    import docker.errors  # only here: nodes without Docker need not load it

    return DockerRuns(
        lambda: docker.from_env(timeout=seconds_max).api,
        node_id=node_id,
        cluster=cluster,
        errors=(docker.errors.DockerException, OSError),
    )
