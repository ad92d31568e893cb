"""Resolves secrets and files that jobs refer to: checked at submission, sent to the node that starts a run."""

from weft.domain.job import FINAL, Job
from weft.domain.spec import OBJECT_STORE_VARIABLE, JobSpec
from weft.messages.contexts import ContextRead, ReadContext
from weft.messages.files import ReadCheckpoint
from weft.messages.images import ReadImage
from weft.messages.nodes import ReadSecrets, SecretsRead
from weft.messages.sessions import SessionLeft
from weft.store import GatewayStore
from weftd.gateway.errors import RejectedError

Asked = ReadSecrets | ReadContext | ReadImage | ReadCheckpoint


async def check_stored(store: GatewayStore, tenant: str, spec: JobSpec, *, at: float) -> None:
    """Refuse a specification that names a secret or files that are not stored. Raises RejectedError."""
    if spec.context is not None and await store.use_context(tenant, spec.context, at=at) is None:
        why = f"tenant {tenant} has no files of this digest; `--sync DIR` stores those of a folder"
        raise RejectedError(400, "context", why)
    if not spec.all_secrets:
        return
    stored = {one.name for one in await store.secrets(tenant)}
    for variable, name in spec.all_secrets.items():
        if name not in stored:
            why = f"tenant {tenant} has no secret {name}; `weft secret set {name}` stores one"
            if variable == OBJECT_STORE_VARIABLE:
                raise RejectedError(400, "object_store", why)
            field = "secrets" if variable in spec.secrets else "secret_files"
            raise RejectedError(400, f"{field}.{variable}", why)


async def read(store: GatewayStore, asked: ReadSecrets) -> SecretsRead:
    """The values for one run, if the job has that run on the asking node in its present epoch."""
    if (job := await held(store, asked)) is None:
        return SecretsRead(refused=not_there(asked))
    named = job.spec.all_secrets
    values = await store.secret_values(job.tenant, set(named.values()))
    return SecretsRead(
        values={variable: values[name] for variable, name in named.items() if name in values},
        missing=tuple(sorted({name for name in named.values() if name not in values})),
    )


async def read_context(store: GatewayStore, asked: ReadContext, *, at: float) -> ContextRead:
    """A piece of a job's files, for the same runs."""
    job = await held(store, asked)
    if job is None or job.spec.context is None:
        return ContextRead(refused=not_there(asked) if job is None else f"{asked.job_id} has no files with it")
    if not asked.number:
        await store.use_context(job.tenant, job.spec.context, at=at)
    found = await store.context_piece(job.tenant, job.spec.context, asked.number)
    return ContextRead(missing=True) if found is None else ContextRead(data=found[0], size=found[1])


async def held(store: GatewayStore, asked: Asked | SessionLeft) -> Job | None:
    """The job, if it has that rank on the asking node in its present epoch."""
    job = await store.job(asked.job_id)
    places = () if job is None or job.state in FINAL or job.placement is None else job.placement.allocations
    here = any((one.node_id, one.rank) == (asked.node_id, asked.rank) for one in places)
    return job if job is not None and job.epoch == asked.epoch and here else None


def not_there(asked: Asked) -> str:
    return f"{asked.job_id} has no rank {asked.rank} of epoch {asked.epoch} on {asked.node_id}"
