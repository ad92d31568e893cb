"""Resolves dependencies: each job or array of the tenant that a submission names is stored by its id."""

from collections.abc import Sequence

from msgspec import structs

from weft.domain.arrays import ARRAY_PREFIX, element_id, split_elements
from weft.domain.dependencies import After
from weft.domain.spec import JobSpec
from weft.store import GatewayStore
from weftd.gateway.errors import RejectedError


async def named(store: GatewayStore, tenant: str, spec: JobSpec) -> JobSpec:
    """The specification with the ids of the jobs that it waits for. Raises RejectedError 404; a job of another tenant
    counts as missing."""
    if not spec.after:
        return spec
    after = [
        structs.replace(one, job=await _id_of(store, tenant, one, field=f"after[{number}]"))
        for number, one in enumerate(spec.after)
    ]
    return structs.replace(spec, after=tuple(after))


async def _id_of(store: GatewayStore, tenant: str, after: After, *, field: str) -> str:
    array, indices = split_elements(after.job)
    found = await array_id(store, tenant, array)
    if indices is not None and found is not None:
        job = await store.job(element_id(found, indices[0]))
        found = None if job is None or job.tenant != tenant else job.id
    elif indices is None and not after.element_wise and not after.job.startswith(ARRAY_PREFIX):
        found = await job_id(store, tenant, after.job) or found
    if found is None:
        what = "array" if after.element_wise else "job or array"
        raise RejectedError(404, f"{field}.job", f"no {what} of this tenant has the id or the name {after.job}")
    if after.element_wise and not found.startswith(ARRAY_PREFIX):
        raise RejectedError(400, f"{field}.element_wise", f"{after.job} is no array")
    return found


async def job_id(store: GatewayStore, tenant: str, job: str) -> str | None:
    """The id of the tenant's job with this id, or of its newest with this name."""
    found = await store.job(job)
    if found is None or found.tenant != tenant:
        found = next(iter(await store.jobs(tenant=tenant, name=job, limit=1)), None)
    return None if found is None else found.id


async def array_id(store: GatewayStore, tenant: str | None, array: str) -> str | None:
    """The id of the tenant's array with this id, or of the newest with this name. Tenant None: any tenant."""
    if array.startswith(ARRAY_PREFIX):
        kept = await store.arrays(ids=[array])
        if kept and tenant in (None, kept[0].tenant):
            return array
    return await store.array_named(array, tenant=tenant)


async def check_element_wise(store: GatewayStore, spec: JobSpec, elements: Sequence[tuple[str, JobSpec]]) -> None:
    """Raises RejectedError 400 if an element waits for an element that does not exist."""
    for number, after in enumerate(spec.after):
        if not after.element_wise:
            continue
        wanted = [one.after[number].job for _, one in elements]
        there = {ends.id for ends in await store.ends_of(wanted) if ends.total}
        missing = [job for job in wanted if job not in there]
        if missing:
            index = missing[0].rpartition("-")[2]
            why = f"{after.job} has no element {index}, for which element {index} would wait"
            raise RejectedError(400, f"after[{number}].job", why)
