"""Sharing: a part of one GPU for each replica, where least is left over in the tighter of time and memory.

Which GPUs come first depends on the job's kind. Training is alone on its GPU as long as one is free; notebooks go where
notebooks are; replicas of inference go to different GPUs; none of this keeps a share from the last place there is. Of
equals the fastest GPU is taken, and of free ones as `weft_best` weighs them. All placements of whole GPUs leave shares
to this one.
"""

from collections.abc import Collection, Mapping
from functools import partial

from libs.domain.cluster import Request
from libs.domain.job import Allocation
from libs.domain.shares import Share
from libs.domain.spec import Kind
from libs.planning.capacity import CPU_GRAIN, NodeRoom, Picks, Room
from libs.planning.fits import Company, Entry, Fit, Fits, Where, company_of
from libs.planning.placement.weft_best import SPARING, WHOLE_NODES
from libs.planning.scores import TYPICAL, Scores
from libs.planning.shape import PlacementRequest, Want

CPUS_LEAST = 0.001  # that a replica may ask for

_C = Company
_PACKED = (_C.OTHERS, _C.NOTEBOOKS, _C.TRAINING, _C.NOBODY)
_AMONG: Mapping[str, tuple[Company, ...]] = {
    Kind.TRAINING: (_C.NOBODY, _C.OTHERS, _C.NOTEBOOKS, _C.TRAINING),
    Kind.NOTEBOOK: (_C.NOTEBOOKS, _C.OTHERS, _C.TRAINING, _C.NOBODY),
}
_APART = (Kind.TRAINING, Kind.INFERENCE)  # replicas of one job of these kinds go to different GPUs if they can


def sharing(room: Room, want: Want, count: int, asked: PlacementRequest) -> Picks | None:
    share = want.request.share
    assert share is not None, "only shares are placed so"
    apart = set(asked.beside) if share.kind in _APART else None
    picks: Picks = []
    with room.supposing():
        for placed in range(count):
            found = _one(room, want.request, share, asked, apart)
            if found is None:
                return None
            picks.append((room.nodes[found.node_id], [(found.gpu,)]))
            if apart is not None:
                apart.add(found)
            if placed + 1 < count:
                room.take(_held(want, found))
    return picks


def _one(
    room: Room, request: Request, share: Share, asked: PlacementRequest, apart: Collection[tuple[str, int]] | None
) -> Fit | None:
    fits, among = _fits(room, request, asked), _AMONG.get(share.kind, _PACKED)
    fits_node = partial(_node_fits, room, request)
    if apart:
        found = fits.best(share, request.model, among, Where(fits_node, apart))
        if found is not None:
            return found
    return fits.best(share, request.model, among, Where(fits_node))


def _fits(room: Room, request: Request, asked: PlacementRequest) -> Fits[NodeRoom]:
    """The GPUs that come into question: of a pinned job those of one node, or one of them."""
    name = room.scores.known(asked.job_class)
    if request.node is None:
        return room.fits(name, partial(_entries, room.scores, name))

    def pinned(node: NodeRoom) -> list[Entry]:
        return [each for each in _entries(room.scores, name, node) if request.gpu in (None, each.gpu)]

    fits = Fits(pinned)
    fits.heed({request.node: room.nodes[request.node]} if room.is_open(request.node) else {}, ())
    return fits


def _node_fits(room: Room, request: Request, node_id: str) -> bool:
    """Whether the node has the CPUs and the memory."""
    node = room.nodes[node_id]
    return node.cpus + CPU_GRAIN >= request.cpus and node.memory >= request.memory


def _entries(scores: Scores, name: str, node: NodeRoom) -> list[Entry]:
    """What the GPUs of a node have left. A node without CPUs or memory has nothing for anybody."""
    if node.cpus + CPU_GRAIN < CPUS_LEAST or node.memory <= 0:
        return []
    gpus, node_id = node.gpus, node.node.id
    of_class, worst = scores.of(name), scores.worst.get(node_id, {})
    breaks = WHOLE_NODES * (len(gpus.whole) - 1) / max(1, len(gpus.models))
    found: list[Entry] = []
    for index, make, left in gpus.giving():
        company, cost = company_of(left), of_class.get((node_id, index), TYPICAL)
        if company is Company.NOBODY:
            cost += SPARING * (1.0 - worst.get(index, TYPICAL)) + breaks
        if left.time > 0:
            found.append(Entry(company, make, left.time, left.memory, cost, index))
    return found


def _held(want: Want, fit: Fit) -> Allocation:
    request = want.request
    return Allocation(
        rank=0,
        role=want.role,
        node_id=fit.node_id,
        gpus=(fit.gpu,),
        cpus=request.cpus,
        memory=request.memory,
        share=request.share,
    )
