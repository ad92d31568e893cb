"""Images that jobs name: pinned to a digest at submission, sent to the node that starts a run, with a login."""

from msgspec import structs

from weft.domain.spec import JobSpec
from weft.messages.images import (
    OWN_HOST,
    ImageRead,
    ReadImage,
    RegistryImage,
    host_of,
    login_of,
    login_secret,
    may_read,
    registry_image,
)
from weft.store import GatewayStore
from weftd.gateway.errors import RejectedError
from weftd.gateway.registry.tickets import TICKET_USER
from weftd.gateway.registry.upstream import NO_REGISTRY, Registry
from weftd.gateway.secret_provider import held, not_there

IMAGE_CHARACTERS_MAX = 255  # the same limit as for every image of a job


async def pinned_spec(registry: Registry | None, tenant: str, spec: JobSpec) -> JobSpec:
    """The specification with the digest of each image of the registry, so that a moved tag changes no job. Raises
    RejectedError."""
    pinned = {
        image: await pinned_image(registry, tenant, image, field)
        for field, image in _named(spec).items()
        if image is not None
    }
    if all(before == after for before, after in pinned.items()):
        return spec
    roles = {
        name: structs.replace(role, image=pinned.get(role.image or "", role.image)) for name, role in spec.roles.items()
    }
    return structs.replace(spec, image=pinned.get(spec.image or "", spec.image), roles=roles)


async def pinned_image(registry: Registry | None, tenant: str, image: str, field: str) -> str:
    """The image with its digest; an image of another registry stays unchanged. Raises RejectedError."""
    found = parsed(image, field, registry)
    if found is None:
        return image
    if registry is None:
        raise RejectedError(400, field, NO_REGISTRY)
    if not may_read(tenant, found.repository):
        raise RejectedError(400, field, f"{image} is an image of another tenant")
    pinned = await registry.pinned(found)
    if pinned is None:
        raise RejectedError(400, field, f"the registry has no image {found}; `weft image push` stores one")
    whole = str(pinned)
    return whole if len(whole) <= IMAGE_CHARACTERS_MAX else str(structs.replace(pinned, tag=""))


def names_registry(registry: Registry | None, spec: JobSpec) -> bool:
    """Return True if the specification names an image that may be deleted meanwhile."""
    hosts = {OWN_HOST, registry.address if registry is not None else OWN_HOST}
    return any(image.partition("/")[0] in hosts for image in _named(spec).values() if image is not None)


async def read_image(store: GatewayStore, registry: Registry | None, asked: ReadImage) -> ImageRead:
    """A ticket to pull the image of a job, or the tenant's login at another registry, for a node on which the job has
    that rank in its present epoch."""
    if (job := await held(store, asked)) is None:
        return ImageRead(refused=not_there(asked))
    names = {*_named(job.spec).values(), *(one.image for one in job.revisions)}
    if asked.image not in names:
        return ImageRead(refused=f"{asked.job_id} names no image {asked.image}")
    if not asked.image.startswith(f"{OWN_HOST}/"):
        return await _login(store, job.tenant, asked.image)
    try:
        pinned = registry_image(await pinned_image(registry, job.tenant, asked.image, "image"))
    except RejectedError as error:
        return ImageRead(away=error.reason) if error.status == 503 else ImageRead(missing=error.reason)
    if registry is None or pinned is None:
        return ImageRead(missing=NO_REGISTRY)
    return ImageRead(
        reference=pinned.at(registry.address),
        user=TICKET_USER,
        password=registry.tickets.made(job.tenant, pinned.repository),
    )


async def _login(store: GatewayStore, tenant: str, image: str) -> ImageRead:
    """The tenant's login at the registry of an image, from its secret; none if there is no such secret."""
    host = host_of(image)
    name = login_secret(host)
    value = (await store.secret_values(tenant, [name])).get(name)
    if value is None:
        return ImageRead(reference=image)
    try:
        user, password = login_of(value, host)
    except ValueError as error:
        return ImageRead(reference=image, bad_login=f"the secret {name} is no login at {host}: {error}")
    return ImageRead(reference=image, user=user, password=password)


def _named(spec: JobSpec) -> dict[str, str | None]:
    """The images of a specification, by their field."""
    return {"image": spec.image, **{f"roles.{name}.image": role.image for name, role in spec.roles.items()}}


def parsed(image: str, field: str, registry: Registry | None) -> RegistryImage | None:
    try:
        return registry_image(image, address=registry.address if registry is not None else "")
    except ValueError as error:
        raise RejectedError(400, field, str(error)) from None
