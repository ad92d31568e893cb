"""Tools for assistants. Tools that change something are offered only if the person allows it."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from weft.client import Client
from weft.client.terminal import cleaned
from weft.domain.job import JobState
from weft.domain.spec import JobSpec, Kind
from weft.messages.http import JobView

ROWS_MAX = 200
LOG_BYTES_MAX = 64 << 10
HIDDEN = "(hidden)"

JobName = Annotated[str, Meta(min_length=1, max_length=63, description="The id of a job, or its name.")]
Rows = Annotated[int, Meta(ge=1, le=ROWS_MAX, description="Maximum number of rows.")]


class NoArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing."""


class OneJob(Struct, frozen=True, forbid_unknown_fields=True):
    """A job."""

    job: JobName


class JobsWanted(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Conditions that jobs meet all together."""

    name: Annotated[str, Meta(max_length=63, description="A name, or a pattern with * and ?.")] = ""
    states: tuple[JobState, ...] = ()
    labels: Annotated[tuple[str, ...], Meta(max_length=16, description="Each NAME=VALUE or NAME.")] = ()
    kinds: tuple[Kind, ...] = ()
    node: Annotated[str, Meta(max_length=63)] = ""
    tenant: Annotated[str, Meta(max_length=63, description="For administrators only.")] = ""
    limit: Rows = 50


class LogWanted(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The last part of a log."""

    job: JobName
    rank: Annotated[int, Meta(ge=0, le=100_000)] = 0
    tail_bytes: Annotated[int, Meta(ge=1, le=LOG_BYTES_MAX)] = 8192


class RowsWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """How many rows."""

    limit: Rows = 50


class JobWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """A job to run."""

    spec: Annotated[dict[str, Any], Meta(description="The specification, as described in docs/job-file.md.")]
    key: Annotated[str, Meta(max_length=255, description="Idempotency key: the same key returns the same job.")] = ""


class SetPriority(Struct, frozen=True, forbid_unknown_fields=True):
    """A priority for a job."""

    job: JobName
    priority: Annotated[int, Meta(ge=-1000, le=1000, description="Higher goes first.")]


Run = Callable[[Client, Any], Awaitable[object]]


class Tool(Struct, frozen=True, kw_only=True):
    """One tool. `writes`: it changes something."""

    name: str
    description: str
    takes: type[Struct]
    run: Run
    writes: bool = False

    def told(self) -> dict[str, Any]:
        """The tool as `tools/list` tells it."""
        schema = msgspec.json.schema(self.takes)
        known = schema["$defs"][self.takes.__name__]
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": {**known, "$defs": schema["$defs"]},
            "annotations": {"readOnlyHint": not self.writes, "destructiveHint": self.writes},
        }


async def _jobs(client: Client, asked: JobsWanted) -> object:
    view = await client.jobs(
        name=asked.name,
        states=asked.states,
        labels=asked.labels,
        kinds=[kind.value for kind in asked.kinds],
        node=asked.node,
        tenant=asked.tenant,
        limit=asked.limit,
        benchmarks=False,
    )
    return view.jobs


async def _job(client: Client, asked: OneJob) -> object:
    job = await client.job(asked.job)
    return {"job": without_secrets(job), "events": await client.story(job.id)}


async def _log(client: Client, asked: LogWanted) -> object:
    return cleaned(await client.read_log(asked.job, rank=asked.rank, tail=asked.tail_bytes))


async def _submit(client: Client, asked: JobWanted) -> object:
    return await client.submit(msgspec.json.encode(asked.spec), key=asked.key or None)


def without_secrets(job: JobView) -> JobView:
    """The job with the names of its variables, not their values, which are often secrets."""
    if job.spec is None:
        return job
    roles = {name: structs.replace(role, env=_hidden(role.env)) for name, role in job.spec.roles.items()}
    spec: JobSpec = structs.replace(job.spec, env=_hidden(job.spec.env), roles=roles)
    return structs.replace(job, spec=spec)


def _hidden(env: dict[str, str]) -> dict[str, str]:
    return dict.fromkeys(env, HIDDEN)


TOOLS = (
    Tool(name="list_jobs", description="Jobs, the newest first.", takes=JobsWanted, run=_jobs),
    Tool(name="describe_job", description="One job and its event history.", takes=OneJob, run=_job),
    Tool(
        name="explain_job",
        description="Why a job waits, what would help and when it starts, or why it runs where it runs.",
        takes=OneJob,
        run=lambda client, asked: client.explain(asked.job),
    ),
    Tool(name="read_log", description="The end of the log of one rank.", takes=LogWanted, run=_log),
    Tool(
        name="list_nodes",
        description="The nodes, their GPUs and the jobs that hold them.",
        takes=NoArguments,
        run=lambda client, _: client.nodes(),
    ),
    Tool(
        name="list_queue",
        description="Waiting jobs in the order of the queue, with reason and estimated start.",
        takes=RowsWanted,
        run=lambda client, asked: client.queue(limit=asked.limit),
    ),
    Tool(
        name="list_events",
        description="Latest events of all jobs and nodes that the token may see.",
        takes=RowsWanted,
        run=lambda client, asked: client.events(limit=asked.limit),
    ),
    Tool(name="submit_job", description="Submit a job.", takes=JobWanted, run=_submit, writes=True),
    Tool(
        name="cancel_job",
        description="End a job: SIGTERM, its grace, SIGKILL.",
        takes=OneJob,
        run=lambda client, asked: client.cancel(asked.job),
        writes=True,
    ),
    Tool(
        name="requeue_job",
        description="Send a job back to the queue, to start again from its checkpoint.",
        takes=OneJob,
        run=lambda client, asked: client.requeue(asked.job),
        writes=True,
    ),
    Tool(
        name="set_priority",
        description="Change the priority of a job.",
        takes=SetPriority,
        run=lambda client, asked: client.prioritise(asked.job, asked.priority),
        writes=True,
    ),
)
