"""Checks of a submission before it is stored, beyond the types of the specification. Pure."""

import posixpath
from collections.abc import Sequence

import msgspec

from weft.domain.cluster import Node, models_text
from weft.domain.quantity import size_text
from weft.domain.spec import REPLICAS_MAX, GpuShare, JobSpec, Replicas, Role
from weft.planning.reasons.offering import unmarked, unoffered
from weft.planning.reasons.refusals import never_fits
from weft.planning.resource_request import ResourceRequest, resource_request_of
from weftd.gateway.errors import RejectedError

VERDICTS_MAX = 10_000
MODELS_SHOWN_MAX = 8


class Admission:
    """Checks specifications against one state of the nodes. Jobs with the same resource request are checked once."""

    def __init__(
        self, nodes: Sequence[Node], *, default_pool: str, volumes_allowed: Sequence[str], shares: bool
    ) -> None:
        self._nodes: dict[str, list[Node]] = {}
        for node in nodes:
            self._nodes.setdefault(node.pool, []).append(node)
        self._default_pool = default_pool
        self._shares = shares
        self._allowed = tuple(_plain(path) for path in volumes_allowed)
        self._verdicts: dict[tuple[str, ResourceRequest], str | None] = {}

    def check(self, spec: JobSpec, tenant: str) -> None:
        """Raises RejectedError with the first mistake of a job of `tenant`."""
        self._check_objective(spec)
        self._check_roles(spec)
        self._check_volumes(spec)
        self._check_pool(spec)
        self._check_marks(spec, tenant)
        self._check_offered(spec, tenant)
        self._check_size(spec, tenant)
        self.check_runtime(spec)

    def _check_objective(self, spec: JobSpec) -> None:
        if spec.objective is not None and not spec.is_service:
            why = "is only for services: add `service`, or leave the objective out"
            raise RejectedError(422, "objective", why)

    def _check_roles(self, spec: JobSpec) -> None:
        for name, role in spec.roles.items():
            if role.share is not None and not self._shares:
                why = "this cluster gives no shares of GPUs (GATEWAY_SHARES is off); ask for whole gpus"
                raise RejectedError(422, f"roles.{name}.share", why)

    def _check_volumes(self, spec: JobSpec) -> None:
        for number, volume in enumerate(spec.volumes):
            if volume.name:
                continue
            source = _plain(volume.source)
            if not any(_is_below(source, allowed) for allowed in self._allowed):
                raise RejectedError(
                    422, f"volumes[{number}].source", f"{volume.source} is not below {_or_list(self._allowed)}"
                )

    def _check_pool(self, spec: JobSpec) -> None:
        if spec.pool not in self._nodes and spec.pool != self._default_pool:
            known = _or_list(sorted({*self._nodes, self._default_pool}))
            raise RejectedError(422, "pool", f"no node is in pool {spec.pool}; there is {known}")

    def check_runtime(self, spec: JobSpec) -> None:
        """Refuse a job that no node could ever start, if all nodes of the pool have the same runtime."""
        nodes = self._nodes.get(spec.pool, ())
        kinds = {node.runtime for node in nodes}
        uses_images = kinds == {"docker"} or any("image" in node.not_enforced for node in nodes)
        for name, role in spec.roles.items():
            image = role.image or spec.image
            if image and kinds == {"process"} and not uses_images:
                why = f"the nodes of pool {spec.pool} run jobs as processes and use no images"
                raise RejectedError(422, f"roles.{name}.image" if role.image else "image", why)
            if not image and kinds == {"docker"}:
                raise RejectedError(422, "image", f"the nodes of pool {spec.pool} run jobs in containers, so name one")

    def _check_marks(self, spec: JobSpec, tenant: str) -> None:
        """Refuse a job if labels or taints exclude it from all nodes of its pool."""
        field, why = unmarked(self._nodes.get(spec.pool, []), resource_request_of(spec, tenant)[0].request)
        if why:
            raise RejectedError(422, field, why)

    def _check_offered(self, spec: JobSpec, tenant: str) -> None:
        """Refuse a volume that no node of the pool offers to the tenant in the requested mode."""
        nodes = self._nodes.get(spec.pool)
        if not nodes or not spec.named_volumes:
            return
        needed = resource_request_of(spec, tenant)[0].request
        for number, volume in enumerate(spec.volumes):
            alone = tuple(each for each in needed.volumes if each.name == volume.name)
            if why := unoffered(nodes, msgspec.structs.replace(needed, volumes=alone)):
                raise RejectedError(422, f"volumes[{number}]", why)
        if why := unoffered(nodes, needed):
            raise RejectedError(422, "volumes", why)

    def _check_size(self, spec: JobSpec, tenant: str) -> None:
        nodes = self._nodes.get(spec.pool)
        if not nodes:
            return  # It waits for the first node.
        spec = _with_a_replica(spec)
        key = (spec.pool, resource_request_of(spec, tenant))
        if key not in self._verdicts:
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            cause = never_fits(spec, nodes, tenant)
            self._verdicts[key] = None if cause is None else _model_missing(spec, nodes) or cause.sentence
        sentence = self._verdicts[key]
        if sentence is not None:
            raise RejectedError(422, _too_big(spec, nodes, tenant), sentence + _over_several_nodes(spec, nodes, tenant))


def _with_a_replica(spec: JobSpec) -> JobSpec:
    """The same job; a service that may have no replica is checked with one replica."""
    if all(role.replicas.least for role in spec.roles.values()):
        return spec
    roles = {
        name: msgspec.structs.replace(
            role, replicas=Replicas(want=max(1, role.replicas.want), min=1, max=role.replicas.most)
        )
        for name, role in spec.roles.items()
    }
    return msgspec.structs.replace(spec, roles=roles)


def _over_several_nodes(spec: JobSpec, nodes: Sequence[Node], tenant: str) -> str:
    """`; try --gpus 8 --replicas 2`: the same GPUs as several ranks, for a job of one role that wants more GPUs than a
    node has; empty if that would not fit either."""
    role = next(iter(spec.roles.values()))
    most = max(len(node.capacity.gpus) for node in nodes)
    if len(spec.roles) > 1 or spec.is_service or spec.pin is not None or role.gpus <= most:
        return ""
    gpus = next((part for part in range(most, 1, -1) if role.gpus % part == 0), None)
    replicas = role.replicas.want * role.gpus // (gpus or 1)
    if gpus is None or replicas > REPLICAS_MAX or role.replicas.least != role.replicas.most:
        return ""
    split = msgspec.structs.replace(role, gpus=gpus, replicas=Replicas(want=replicas))
    name = next(iter(spec.roles))
    if never_fits(msgspec.structs.replace(spec, roles={name: split}), nodes, tenant) is not None:
        return ""
    return f"; try --gpus {gpus} --replicas {replicas}"


def _too_big(spec: JobSpec, nodes: Sequence[Node], tenant: str) -> str:
    """The field to name: the resource of the role that alone is too big, if there is one."""
    if spec.pin is not None:
        return _too_narrow(spec, nodes, tenant)
    for name, role in spec.roles.items():
        alone = msgspec.structs.replace(spec, roles={name: role})
        if never_fits(alone, nodes, tenant) is None:
            continue
        capacities = [node.capacity for node in nodes]
        models = {gpu.model for capacity in capacities for gpu in capacity.gpus}
        if _on_gpus(role) and models and not any(map(spec.may_have, models)):
            return "gpu_model"
        if _on_gpus(role) and spec.gpu_memory_bytes > _memory_most(spec, nodes):
            return "gpu_memory"
        if role.share is not None:
            alone = msgspec.structs.replace(spec, roles={name: _with_little_memory(role, role.share)})
            if never_fits(alone, nodes, tenant) is None:
                return f"roles.{name}.share.memory"
            if not any(node.gives_shares and node.capacity.gpus for node in nodes):
                return f"roles.{name}.share"
        if role.gpus > max(len(capacity.gpus) for capacity in capacities):
            return f"roles.{name}.gpus"
        if role.cpus > max(capacity.cpus for capacity in capacities):
            return f"roles.{name}.cpus"
        if role.memory_bytes > max(capacity.memory for capacity in capacities):
            return f"roles.{name}.memory"
        return f"roles.{name}.replicas" if role.replicas.least > 1 else f"roles.{name}"
    return "roles"


def _model_missing(spec: JobSpec, nodes: Sequence[Node]) -> str:
    """Why no GPU of the pool suits the job, by model or memory, and what the pool has; empty if one does."""
    if not any(map(_on_gpus, spec.roles.values())):
        return ""
    models = sorted({gpu.model for node in nodes for gpu in node.capacity.gpus})
    named = models_text(spec.gpu_models, spec.gpu_models_excluded)
    named = f" of {named}" if named else ""
    if named and not any(map(spec.may_have, models)):
        shown = ", ".join(models[:MODELS_SHOWN_MAX]) + (", …" if len(models) > MODELS_SHOWN_MAX else "")
        return f"no node of pool {spec.pool} has a GPU{named}; there is {shown or 'no GPU at all'}"
    if spec.gpu_memory_bytes > (most := _memory_most(spec, nodes)):
        has = f"the largest has {size_text(most)}" if most else "there is no GPU at all"
        return f"no GPU{named} of pool {spec.pool} has {spec.gpu_memory} of memory; {has}"
    return ""


def _memory_most(spec: JobSpec, nodes: Sequence[Node]) -> int:
    """The memory of the largest GPU of a model that the job may have."""
    gpus = (gpu for node in nodes for gpu in node.capacity.gpus)
    return max((gpu.memory for gpu in gpus if spec.may_have(gpu.model)), default=0)


def _on_gpus(role: Role) -> bool:
    return role.gpus > 0 or role.share is not None


def _with_little_memory(role: Role, share: GpuShare) -> Role:
    return msgspec.structs.replace(role, share=msgspec.structs.replace(share, memory="1B"))


def _too_narrow(spec: JobSpec, nodes: Sequence[Node], tenant: str) -> str:
    """The same for a job that is pinned to a node."""
    assert spec.pin is not None
    there = [node for node in nodes if node.id == spec.pin.node]
    if not there:
        return "pin.node"
    if spec.pin.gpu is not None:
        anywhere = msgspec.structs.replace(spec, pin=msgspec.structs.replace(spec.pin, gpu=None))
        if never_fits(anywhere, nodes, tenant) is None:
            return "pin.gpu"
    unpinned = msgspec.structs.replace(spec, pin=None)
    return "pin.node" if never_fits(unpinned, there, tenant) is None else _too_big(unpinned, there, tenant)


def _plain(path: str) -> str:
    """A path without `.`, doubled and trailing slashes; two leading ones become one."""
    return "/" + posixpath.normpath(path).lstrip("/")


def _is_below(path: str, allowed: str) -> bool:
    return path == allowed or path.startswith(allowed.rstrip("/") + "/")


def _or_list(names: Sequence[str]) -> str:
    return " or ".join(names) if names else "anything: this cluster allows no volumes"
