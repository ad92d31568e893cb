"""The checkpoint of another job with which a job starts: found as the job is submitted, and read from the nodes that
have it for the node that starts a run. docs/results.md."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import structs

from weft.bus import Bus, BusError
from weft.domain.arrays import element_id, split_elements
from weft.domain.checkpoints import of_step
from weft.domain.job import Job
from weft.domain.spec import JobSpec
from weft.domain.text import listed
from weft.messages.files import (
    Area,
    CheckpointRead,
    FileRead,
    FilesListed,
    JobFile,
    ListFiles,
    ReadCheckpoint,
    ReadFile,
)
from weft.store import GatewayStore
from weftd.gateway.dependencies import array_id, job_id
from weftd.gateway.errors import RejectedError
from weftd.gateway.secret_provider import held, not_there
from weftd.gateway.sessions.runs import ANSWER_SECONDS_MAX, placements

FIELD = "from_checkpoint"
NODES_MAX = 64  # nodes from which one checkpoint is collected
STEPS_SHOWN_MAX = 5
SUBMIT_SECONDS_MAX = 20.0  # for all nodes that are asked while a job is submitted


class _SilentNodeError(Exception):
    """A node with a part of the checkpoint does not answer, or refuses; the text says which."""


async def with_source(store: GatewayStore, bus: Bus, tenant: str, spec: JobSpec) -> JobSpec:
    """The specification with the id of the job whose checkpoint it names. Raises RejectedError if there is none; a job
    of another tenant counts as missing."""
    if spec.from_checkpoint is None:
        return spec
    name, colon, step = spec.from_checkpoint.partition(":")
    job = await _source(store, tenant, name)
    if job is None:
        raise RejectedError(404, FIELD, f"no job of this tenant has the id or the name {name}")
    nodes = await _nodes_of(store, job)
    if len(nodes) > NODES_MAX:
        raise RejectedError(400, FIELD, f"{name} left checkpoints on {len(nodes)} nodes; at most {NODES_MAX} are read")
    try:
        async with asyncio.timeout(SUBMIT_SECONDS_MAX):
            await _check_there(bus, job, nodes, step, name=name)
    except TimeoutError:
        why = f"the nodes that have the checkpoint of {name} did not list it within {SUBMIT_SECONDS_MAX:g}s"
        raise RejectedError(503, FIELD, why) from None
    except _SilentNodeError as silent:
        raise RejectedError(503, FIELD, f"{silent}, and may have the checkpoint of {name}: try again later") from None
    return structs.replace(spec, from_checkpoint=f"{job.id}{colon}{step}")


async def read_checkpoint(store: GatewayStore, bus: Bus, asked: ReadCheckpoint) -> CheckpointRead:
    """Answer a node that is about to start a run of a job that has `from_checkpoint`."""
    job = await held(store, asked)
    if job is None or job.spec.from_checkpoint is None:
        return CheckpointRead(refused=not_there(asked) if job is None else f"{asked.job_id} starts with none")
    source_id, _, step = job.spec.from_checkpoint.partition(":")
    if not asked.source:
        source = await store.job(source_id)
        nodes = () if source is None or source.tenant != job.tenant else await _nodes_of(store, source)
        missing = "" if nodes else f"{source_id}, whose checkpoint it starts with, is not stored any more"
        return CheckpointRead(job_id=source_id, nodes=nodes, missing=missing)
    try:
        if not asked.path:
            return await _page(bus, asked, source_id, step)
        if not _is_wanted(asked.path, step):
            return CheckpointRead(refused=f"{asked.path[:200]} is no part of the checkpoint {job.spec.from_checkpoint}")
        ask = ReadFile(node_id=asked.source, job_id=source_id, path=asked.path, offset=asked.offset, limit=asked.limit)
        found = await bus.request(ask, FileRead, seconds_max=ANSWER_SECONDS_MAX)
    except (BusError, _SilentNodeError):
        return CheckpointRead(refused=f"node {asked.source}, which has it, does not answer")
    if found.missing or found.refused:
        why = found.refused or "is gone: its job or its owner deleted it"
        return CheckpointRead(refused=f"{asked.path[:200]} on node {asked.source} {why}")
    return CheckpointRead(data=found.data, size=found.size, mark=found.mark)


async def _page(bus: Bus, asked: ReadCheckpoint, source_id: str, step: str) -> CheckpointRead:
    listed_there = await _list(bus, asked.source, source_id, after=asked.after)
    files = tuple(file for file in listed_there.files if _is_wanted(file.path, step))
    return CheckpointRead(job_id=source_id, files=files, next=listed_there.next, cut=listed_there.cut)


async def _check_there(bus: Bus, job: Job, nodes: tuple[str, ...], step: str, *, name: str) -> None:
    """Raises RejectedError if no node has the step, or any checkpoint; _SilentNodeError."""
    steps = dict[str, None]()
    for node_id in nodes:
        async with aclosing(_files(bus, node_id, job.id)) as files:
            async for file in files:
                if _is_wanted(file.path, step):
                    return
                steps.setdefault(_top(file.path))
    if steps:
        shown = listed(tuple(steps), STEPS_SHOWN_MAX)
        raise RejectedError(404, FIELD, f"{name} has no checkpoint of step {step}; it has {shown}")
    why = f" on {listed(nodes, STEPS_SHOWN_MAX)}" if nodes else f": it is {job.state}, and no node has run it yet"
    raise RejectedError(404, FIELD, f"{name} has no files in WEFT_CHECKPOINT_DIR{why}")


async def _files(bus: Bus, node_id: str, job_id: str) -> AsyncGenerator[JobFile, None]:
    after = ""
    while True:
        found = await _list(bus, node_id, job_id, after=after)
        for file in found.files:
            yield file
        after = found.next
        if not after:
            return


async def _list(bus: Bus, node_id: str, job_id: str, *, after: str) -> FilesListed:
    """Raises _SilentNodeError."""
    ask = ListFiles(node_id=node_id, job_id=job_id, path=Area.CHECKPOINTS.value, after=after)
    try:
        found = await bus.request(ask, FilesListed, seconds_max=ANSWER_SECONDS_MAX)
    except BusError:
        raise _SilentNodeError(f"node {node_id} does not answer") from None
    if found.refused:
        raise _SilentNodeError(f"node {node_id} cannot read it ({found.refused})")
    return found


async def _source(store: GatewayStore, tenant: str, name: str) -> Job | None:
    """The tenant's job or element with this id or name, such as `train` or `sweep_3`."""
    array, indices = split_elements(name)
    if indices is None:
        found = await job_id(store, tenant, name)
    else:
        owner = await array_id(store, tenant, array)
        found = None if owner is None else element_id(owner, indices[0])
    job = None if found is None else await store.job(found)
    return job if job is not None and job.tenant == tenant else None


async def _nodes_of(store: GatewayStore, job: Job) -> tuple[str, ...]:
    """The nodes of its newest epoch that was placed, that of the lowest rank first, each once."""
    known = await placements(store, job, None)
    if not known:
        return ()
    return tuple(dict.fromkeys(one.node_id for one in known[max(known)].allocations))


def _top(path: str) -> str:
    """The file or folder at the top of the checkpoint folder in which a file is."""
    return path.split("/")[1] if "/" in path else ""


def _is_wanted(path: str, step: str) -> bool:
    return path.startswith(f"{Area.CHECKPOINTS}/") and of_step(_top(path), step)
