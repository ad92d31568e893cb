"""Secrets: stored and deleted by their tenant, never shown, and given to the node that starts a job which names one."""

import re

from aiohttp import web
from msgspec import structs

from libs.domain.job import FINAL
from libs.domain.spec import TOKEN_PATTERN, JobSpec
from libs.messages.nodes import ReadSecrets, SecretsRead
from libs.messages.secrets import VALUE_BYTES_MAX, SecretDeleted, SecretsView, SecretView, SecretWanted
from libs.store import GatewayStore
from libs.store.secrets import SecretKept
from services.gateway.errors import TOKEN_WORDS, RejectedError
from services.gateway.route import Call, NoQuery, answer, json_of

PER_TENANT_MAX = 256
_matches_token = re.compile(TOKEN_PATTERN).fullmatch


async def secrets(call: Call[NoQuery]) -> web.StreamResponse:
    kept = await call.gateway.store.secrets(call.who.tenant)
    return answer(SecretsView(secrets=tuple(_view(one) for one in kept)))


async def set_(call: Call[NoQuery]) -> web.StreamResponse:
    name, tenant, store = _name(call), call.who.tenant, call.gateway.store
    value = (await json_of(call.request, SecretWanted)).value
    if "\0" in value:
        raise RejectedError(400, "value", "has a byte 0, which no environment can have")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise RejectedError(400, "value", "is no text in UTF-8") from None
    if size > VALUE_BYTES_MAX:
        raise RejectedError(400, "value", f"is {size} bytes; {VALUE_BYTES_MAX} at most are stored")
    if not await store.set_secret(tenant, name, value, at=call.gateway.now(), most=PER_TENANT_MAX):
        raise RejectedError(409, "name", f"tenant {tenant} has {PER_TENANT_MAX} secrets: delete one")
    return answer(next(_view(one) for one in await store.secrets(tenant) if one.name == name))


async def delete(call: Call[NoQuery]) -> web.StreamResponse:
    name = _name(call)
    if not await call.gateway.store.delete_secret(call.who.tenant, name):
        raise RejectedError(404, "name", f"tenant {call.who.tenant} has no secret {name}")
    return answer(SecretDeleted(deleted=name))


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


def _name(call: Call[NoQuery]) -> str:
    name = call.path("name")
    if not _matches_token(name):
        raise RejectedError(400, "name", TOKEN_WORDS)
    return name


def _view(kept: SecretKept) -> SecretView:
    return SecretView(**structs.asdict(kept))
