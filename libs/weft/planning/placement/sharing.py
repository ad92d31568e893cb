"""Sharing: a part of one GPU for each replica, where least is left over in the tighter of time and memory.

Which GPUs come first depends on the job's kind. Training is alone on its GPU as long as one is free; notebooks go where
notebooks are; replicas of inference go to different GPUs, those of a service to different nodes, and rather to
notebooks or a free GPU than to training; none of this keeps a share from the last place there is. What jobs of two
classes are known to slow each other down counts as if as much of the GPU were left over. Of equals the fastest GPU is
taken. Free ones are weighed as `weft_best` weighs them, by how many GPUs are left in the NVLink group and the socket
that they break, and by whether their node has the CPUs that go with them. All placements of whole GPUs leave shares to
this one.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from math import log2

from weft.domain.cluster import Request
from weft.domain.shares import WHOLE, Share
from weft.domain.spec import Kind
from weft.planning.capacity import CPU_GRAIN, FreeCapacity, NodeCapacity, Picks
from weft.planning.capacity.fits import Company, Fits, GpuEntry, Where, company_of
from weft.planning.placement.inside import SPARING, WHOLE_GROUPS
from weft.planning.placement.weft_best import WHOLE_NODES
from weft.planning.resource_request import PlacementRequest, RoleRequest
from weft.planning.scores import TYPICAL, GpuKey, Scores

OCTAVE = 2  # classes of nodes by their CPUs for each GPU, in each doubling
TOO_MANY_CPUS, TOO_FEW_CPUS = 0.025, 0.05  # what each class of difference costs, as a part of the job's time
CPUS_LEAST = 0.001  # that a replica may ask for

_C = Company
_PACKED = (_C.OTHERS, _C.NOTEBOOKS, _C.TRAINING, _C.NOBODY)
_AMONG: Mapping[str, tuple[Company, ...]] = {
    Kind.TRAINING: (_C.NOBODY, _C.OTHERS, _C.NOTEBOOKS, _C.TRAINING),
    Kind.NOTEBOOK: (_C.NOTEBOOKS, _C.OTHERS, _C.TRAINING, _C.NOBODY),
}
_QUIET = (_C.NOTEBOOKS, _C.OTHERS, _C.NOBODY)  # training would use all that a service leaves for a moment
_APART = (Kind.TRAINING, Kind.INFERENCE)  # replicas of one job of these kinds go to different GPUs if they can


def sharing(free_capacity: FreeCapacity, want: RoleRequest, count: int, asked: PlacementRequest) -> Picks | None:
    picks = as_many(free_capacity, want, count, asked)
    return picks if len(picks) == count else None


def as_many(free_capacity: FreeCapacity, want: RoleRequest, count: int, asked: PlacementRequest) -> Picks:
    """Places for the first of `count` replicas, as many as have one; each pick is one replica."""
    share = want.request.share
    assert share is not None, "only shares are placed so"
    apart = set(asked.beside) if share.kind in _APART else None
    picks: Picks = []
    with free_capacity.supposing():
        for placed in range(count):
            found = _one(free_capacity, want.request, share, asked, apart)
            if found is None:
                break
            node_id, gpu = found
            picks.append((free_capacity.nodes[node_id], [(gpu,)]))
            if apart is not None:
                apart.add(found)
            if placed + 1 < count:
                free_capacity.take(want.allocation(node_id, (gpu,)))
    return picks


def _one(
    free_capacity: FreeCapacity,
    request: Request,
    share: Share,
    asked: PlacementRequest,
    apart: Collection[GpuKey] | None,
) -> GpuKey | None:
    fits, among = _fits(free_capacity, request, asked), _AMONG.get(share.kind, _PACKED)
    fits_node = partial(_node_fits, free_capacity, request)
    misfit = partial(_misfit, _octave(request.cpus * WHOLE / share.request))
    harm = cache(partial(_harm, free_capacity.scores, asked.job_class)) if free_capacity.scores.slowdowns else None
    if asked.is_service and apart is not None:
        return _one_of_service(fits, request, share, fits_node, partial(Where, misfit=misfit, harm=harm), apart)
    if apart:
        found = fits.best(share, request, among, Where(fits_node, misfit, apart, harm))
        if found is not None:
            return found
    return fits.best(share, request, among, Where(fits_node, misfit, harm=harm))


def _one_of_service(
    fits: Fits[NodeCapacity],
    request: Request,
    share: Share,
    fits_node: Callable[[str], bool],
    where: Callable[..., Where],
    apart: Collection[GpuKey],
) -> GpuKey | None:
    """Beside no training if it can be; then on a node, or at least a GPU, without another replica of the service."""
    nodes = {node_id for node_id, _ in apart}

    def other_node(node_id: str) -> bool:
        return node_id not in nodes and fits_node(node_id)

    for among in (_QUIET, (_C.TRAINING,)):
        found = fits.best(share, request, among, where(other_node)) if nodes else None
        found = found or fits.best(share, request, among, where(fits_node, apart=apart))
        if found is not None:
            return found
    return fits.best(share, request, (*_QUIET, _C.TRAINING), where(fits_node)) if apart else None


def _fits(free_capacity: FreeCapacity, request: Request, asked: PlacementRequest) -> Fits[NodeCapacity]:
    """The GPUs that come into question: of a pinned job those of one node, or one of them."""
    name, enough = free_capacity.scores.known(asked.job_class), asked.tolerates or 0.0
    if request.node is None:
        known = f"{name} from {enough}" if enough else name
        return free_capacity.fits(known, partial(_entries, free_capacity.scores, name, enough))

    def pinned(node: NodeCapacity) -> list[GpuEntry]:
        return [each for each in _entries(free_capacity.scores, name, enough, node) if request.gpu in (None, each.gpu)]

    fits = Fits(pinned)
    fits.heed({request.node: free_capacity.nodes[request.node]} if free_capacity.is_open(request.node) else {}, ())
    return fits


def _node_fits(free_capacity: FreeCapacity, request: Request, node_id: str) -> bool:
    """True if the node can start it, and has the CPUs and the memory."""
    node = free_capacity.nodes[node_id]
    return node.starts(request) and node.cpus + CPU_GRAIN >= request.cpus and node.memory >= request.memory


def _entries(scores: Scores, name: str, enough: float, node: NodeCapacity) -> list[GpuEntry]:
    """What the GPUs of a node have left. A node without CPUs or memory has nothing for shares. GPUs with scores up to
    `enough` count as equally fast."""
    if node.cpus + CPU_GRAIN < CPUS_LEAST or node.memory <= 0:
        return []
    gpus, node_id = node.gpus, node.node.id
    of_class, worst, learnt = scores.of(name), scores.worst.get(node_id, {}), bool(scores.slowdowns)
    breaks = WHOLE_NODES * (len(gpus.whole) - 1) / max(1, len(gpus.models))
    parts = gpus.time_left / WHOLE
    near, whole = node.near, 0 if node.near is None else node.near.mask(gpus.whole)
    plenty = _octave(node.cpus / (len(gpus.whole) + parts)) if gpus.whole else 0
    found: list[GpuEntry] = []
    for index, make, left in gpus.giving():
        company, cost = company_of(left), max(enough, of_class.get((node_id, index), TYPICAL))
        if company is Company.NOBODY:
            cost += SPARING * (1.0 - worst.get(index, TYPICAL)) + breaks
            if near is not None:
                cost += WHOLE_GROUPS * near.broken(whole, near.mask((index,)))
        if left.time > 0:
            of_row = plenty if company is _C.NOBODY else left.company if learnt else 0
            found.append(GpuEntry(company, make, left.time, left.memory, cost, index, of_row))
    return found


def _harm(scores: Scores, job_class: str, company: int) -> float:
    """The cost of sharing a GPU with jobs of these classes: the extra time of a step there plus that of their steps, as
    parts of the GPU's time. Leaving such a part of a GPU unused costs the same."""
    own, theirs = scores.beside(job_class, company)
    return own + theirs - 2 * TYPICAL


def _octave(cpus_each: float) -> int:
    """The class of this number of CPUs per GPU."""
    return round(OCTAVE * log2(max(cpus_each, CPUS_LEAST)))


def _misfit(wanted: int, there: int) -> float:
    """What it costs that a node has more CPUs for each of its GPUs than the job wants for a whole one, or fewer: what
    is left of its CPUs, or of its GPUs, is then of use to few."""
    return TOO_MANY_CPUS * (there - wanted) if there >= wanted else TOO_FEW_CPUS * (wanted - there)
