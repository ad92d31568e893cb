"""The secrets that jobs name: known at submission, and given to the node that starts a run."""

from libs.domain.job import FINAL
from libs.domain.spec import JobSpec
from libs.messages.nodes import ReadSecrets, SecretsRead
from libs.store import GatewayStore
from services.gateway.errors import RejectedError


async def check_stored(store: GatewayStore, tenant: str, spec: JobSpec) -> None:
    """Refuse a specification that names a secret of which nothing is stored. Raises RejectedError."""
    if not spec.secrets:
        return
    stored = {one.name for one in await store.secrets(tenant)}
    for variable, name in spec.secrets.items():
        if name not in stored:
            why = f"tenant {tenant} has no secret {name}; `weft secret set {name}` stores one"
            raise RejectedError(400, f"secrets.{variable}", why)


async def read(store: GatewayStore, asked: ReadSecrets) -> SecretsRead:
    """The values for one run, if the job has it on the node that asks, in the epoch that it is in."""
    job = await store.job(asked.job_id)
    held = () if job is None or job.state in FINAL or job.placement is None else job.placement.allocations
    here = any((one.node_id, one.rank) == (asked.node_id, asked.rank) for one in held)
    if job is None or job.epoch != asked.epoch or not here:
        return SecretsRead(refused=f"{asked.job_id} has no rank {asked.rank} of epoch {asked.epoch} on {asked.node_id}")
    values = await store.secret_values(job.tenant, set(job.spec.secrets.values()))
    return SecretsRead(
        values={variable: values[name] for variable, name in job.spec.secrets.items() if name in values},
        missing=tuple(sorted({name for name in job.spec.secrets.values() if name not in values})),
    )
