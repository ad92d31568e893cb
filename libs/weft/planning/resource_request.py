"""The resource request of a job: its roles, their replica counts, and the needs of one replica; and its placement
request."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, structs

from weft.domain.classes import JOB_CLASSES
from weft.domain.cluster import NeededVolume, Request
from weft.domain.job import Allocation, Job
from weft.domain.shares import WHOLE
from weft.domain.spec import JobSpec, Role


class RoleRequest(Struct, frozen=True, cache_hash=True):
    """`count` replicas of one role (at least `least`), each needing `request`."""

    role: str
    least: int
    count: int
    request: Request

    def of_class(self, job_class: str) -> "RoleRequest":
        """The same for a job of that class; the most sensitive one, or an unknown one, is not noted."""
        share = self.request.share
        noted = job_class if job_class in JOB_CLASSES[1:] else ""
        if share is None or share.job_class == noted:
            return self
        return structs.replace(
            self, request=structs.replace(self.request, share=structs.replace(share, job_class=noted))
        )

    def allocation(self, node_id: str, gpus: tuple[int, ...]) -> Allocation:
        """Resources that one replica holds there."""
        request = self.request
        return Allocation(
            rank=0,
            role=self.role,
            node_id=node_id,
            gpus=gpus,
            cpus=request.cpus,
            memory=request.memory,
            egress=request.egress,
            share=request.share,
        )


ResourceRequest = tuple[RoleRequest, ...]
"""All roles of a job. Jobs of one shape fit, or do not fit, alike."""


class PlacementRequest(Struct, frozen=True):
    """The facts of a job that its placement may use. `workload`: the workload of a job with whole GPUs, else empty; it
    has a locality penalty and speeds by model. `key` seeds the random placement; `beside`: the GPUs, by node, of
    which the job has shares already, or which a service has (-1: nothing of any). `tolerates`: of a service, the score
    up to which a GPU serves it as well as the fastest. `avoids`: nodes on which it failed, taken only if it fits
    nowhere else."""

    job_class: str = ""
    key: str = ""
    beside: tuple[tuple[str, int], ...] = ()
    tolerates: float | None = None
    avoids: tuple[str, ...] = ()
    workload: str = ""

    @property
    def is_service(self) -> bool:
        return self.tolerates is not None


NOBODY = PlacementRequest()


def resource_request_of(spec: JobSpec, tenant: str = "") -> ResourceRequest:
    """The shape of such a job of `tenant`. If it is pinned to GPUs, each role begins behind the GPUs of the previous
    role. A service starts with one replica, however many it should have at least."""
    demand: list[RoleRequest] = []
    node, gpu = (None, None) if spec.pin is None else (spec.pin.node, spec.pin.gpu)
    volumes = tuple(NeededVolume(each.name, tenant, not each.read_only) for each in spec.named_volumes)
    for name, role in spec.roles.items():
        least, count = (1, max(1, role.replicas.want)) if spec.is_service else (role.replicas.least, role.replicas.want)
        demand.append(RoleRequest(name, least, count, _request(role, spec, node, gpu, volumes)))
        gpu = None if gpu is None else gpu + role.gpus * role.replicas.want
    return tuple(demand)


def resource_request_of_job(job: Job) -> ResourceRequest:
    """The job's shape, with as many replicas as it should have now."""
    resource_request = preferring(resource_request_of(job.spec, job.tenant), job.gpu_model)
    return sized(resource_request, job.size) if job.size else resource_request


def preferring(resource_request: ResourceRequest, model: str) -> ResourceRequest:
    """The shape that gets GPUs of this model if it fits there; the same if `model` is empty."""
    return tuple(
        structs.replace(want, request=structs.replace(want.request, prefers=model))
        if model and with_gpus(want.request)
        else want
        for want in resource_request
    )


def only_on(resource_request: ResourceRequest, model: str) -> ResourceRequest:
    """The shape with GPUs of this model alone."""
    return tuple(
        structs.replace(want, request=structs.replace(want.request, models=(model,), prefers=""))
        if with_gpus(want.request)
        else want
        for want in resource_request
    )


def sized(resource_request: ResourceRequest, size: Mapping[str, int]) -> ResourceRequest:
    """The shape with the replicas of `size`; a role that `size` does not name has as many as before."""
    return tuple(
        structs.replace(want, count=max(want.least, size.get(want.role, want.count))) for want in resource_request
    )


def of_one_model(resource_request: ResourceRequest) -> Iterator[ResourceRequest]:
    """The shape with GPUs of one model alone: of the model that it prefers, then of each model that it names in turn.
    Nothing for a shape to which one model is as good as another."""
    requests = [want.request for want in resource_request if with_gpus(want.request)]
    preferred = dict.fromkeys(request.prefers for request in requests if request.prefers)
    named = dict.fromkeys(model for request in requests for model in request.models)
    if preferred or len(named) > 1:
        for model in preferred | named:
            yield only_on(resource_request, model)


def may_choose(resource_request: ResourceRequest) -> bool:
    """Return True if one size of the job can start, with whole GPUs of any model that suits it and on any node. A job
    that names models prefers them in that order; one that prefers a model was given it by a planner."""
    requests = [want.request for want in resource_request if with_gpus(want.request)]
    fixed = all(want.least == want.count for want in resource_request)
    free = all(not (one.models or one.prefers or one.share or one.node) for one in requests)
    return bool(requests) and fixed and free


def gpus_of(resource_request: ResourceRequest) -> float:
    """The number of requested GPUs of all replicas; a share counts as a fraction."""
    return _gpus([(want.count, want.request) for want in resource_request])


def gpus_least(resource_request: ResourceRequest) -> float:
    """The number of GPUs that start a job with this request."""
    return _gpus([(want.least, want.request) for want in resource_request])


def smallest(resource_request: ResourceRequest) -> ResourceRequest:
    """The shape with as few replicas as start the job."""
    return tuple(structs.replace(want, count=want.least) for want in resource_request)


def one_more(resource_request: ResourceRequest) -> ResourceRequest:
    """The shape of one more replica of each role."""
    return tuple(structs.replace(want, least=1, count=1) for want in resource_request)


def between(resource_request: ResourceRequest, part: int, parts: int) -> ResourceRequest:
    """The shape with the fraction `part` / `parts` of the replicas that each role wants beyond its least."""
    return tuple(
        structs.replace(want, count=want.least + (want.count - want.least) * part // parts) for want in resource_request
    )


def with_more(resource_request: ResourceRequest, index: int, more: int) -> ResourceRequest:
    """The shape with `more` replicas of the role at `index`."""
    grown = structs.replace(resource_request[index], count=resource_request[index].count + more)
    return (*resource_request[:index], grown, *resource_request[index + 1 :])


def is_pinned(resource_request: ResourceRequest) -> bool:
    """True if a role must run on one node, and perhaps on certain GPUs there."""
    return any(want.request.node is not None for want in resource_request)


def pinned_gpus(want: RoleRequest, count: int) -> list[tuple[int, ...]]:
    """The GPUs of each of `count` replicas, from the first GPU that `want` is pinned to; empty if to none by index.
    Shares are all of that one GPU."""
    first, size = want.request.gpu, want.request.gpus
    if first is not None and want.request.share is not None:
        return [(first,)] * count
    if first is None or not size:
        return []
    return [tuple(range(first + at * size, first + (at + 1) * size)) for at in range(count)]


def gpus_in(allocations: Iterable[Allocation]) -> float:
    """Number of GPUs in the allocations; a share counts as a fraction."""
    whole = parts = 0
    for allocation in allocations:
        if allocation.share is None:
            whole += len(allocation.gpus)
        else:
            parts += allocation.share.request
    return whole + parts / WHOLE if parts else whole


def with_gpus(request: Request) -> bool:
    """Return True if a replica needs GPUs, or a share of one."""
    return request.gpus > 0 or request.share is not None


def _gpus(counted: Iterable[tuple[int, Request]]) -> float:
    """Counted in thousandths where there are shares, so that parts of GPUs add up."""
    whole = parts = 0
    for count, request in counted:
        whole += count * request.gpus
        parts += 0 if request.share is None else count * request.share.request
    return whole + parts / WHOLE if parts else whole


def _request(
    role: Role, spec: JobSpec, node: str | None, gpu: int | None, volumes: tuple[NeededVolume, ...]
) -> Request:
    on_gpus = role.gpus > 0 or role.share is not None
    return Request(
        gpus=role.gpus,
        cpus=role.cpus,
        memory=role.memory_bytes,
        models=spec.gpu_models if on_gpus else (),
        excluded=spec.gpu_models_excluded if on_gpus else (),
        gpu_memory=spec.gpu_memory_bytes if on_gpus else 0,
        egress=role.egress_bytes,
        node=node,
        gpu=gpu if on_gpus else None,
        share=None if role.share is None else structs.replace(role.share.held, kind=str(spec.kind)),
        volumes=volumes,
        image=bool(role.image or spec.image),
        where=spec.where or "",
        tolerates=spec.tolerate,
    )
