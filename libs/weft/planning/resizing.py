"""Other replicas of a role while the job runs: places for more of them, which of them leave, and how soon again.

The replicas that stay keep their ranks, nodes and GPUs. Nothing here changes the room or the job: the caller does.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from weft.domain.job import Allocation
from weft.domain.spec import Kind
from weft.planning.capacity import FreeCapacity, Placer
from weft.planning.finding import Place, find, with_shares_of
from weft.planning.resource_request import NOBODY, PlacementRequest, RoleRequest
from weft.planning.tiers import has_lasted

COOL_DOWN_SECONDS = 120.0  # the shortest cool-down, unless settings say otherwise
COOL_DOWN_RESTARTS = 10.0  # a restart costs at most a tenth of the time until the next one
ROUNDED = 9  # decimals of a slowdown: of equals, the place beside the job is the first


def grow(
    free_capacity: FreeCapacity,
    allocations: Sequence[Allocation],
    want: RoleRequest,
    more: int,
    *,
    first_rank: int,
    least: int | None = None,
    asked: PlacementRequest = NOBODY,
    placer: Placer | None = None,
) -> Place | None:
    """Places for `more` further replicas of a role, or, where not all of them fit, for as many as fit, `least` or more
    (None: all). None if there are none.

    `allocations`: all that the job holds now, which the room counts as taken; `want`: the role and what one replica of
    it needs (its counts are not used). The new replicas have the ranks `first_rank`, `first_rank` + 1, …; `placer`
    instead of the room's own. They go to nodes on which the job is already, as far as there is room; elsewhere only if
    that makes the job faster, or if not all of them fit there. Raises ValueError if `more` or `least` makes no sense.
    """
    least = more if least is None else least
    if not 1 <= least <= more:
        raise ValueError(f"a job grows by one replica at least: {least} to {more}")
    asked = with_shares_of(asked, allocations)
    places = [
        _beside(free_capacity, allocations, want, more, least, asked, placer),
        _find(free_capacity, _unpinned(allocations, want), more, least, asked, placer),
    ]
    most = max(len(place or ()) for place in places)
    if not most:
        return None

    def slowdown(place: Place) -> float:
        return round(free_capacity.slowdown([*allocations, *place], asked), ROUNDED)

    chosen = min((place for place in places if place and len(place) == most), key=slowdown)
    return tuple(structs.replace(new, rank=rank) for rank, new in enumerate(chosen, first_rank))


def shrink(
    allocations: Sequence[Allocation], role: str, fewer: int, *, least: int, lonely_first: bool = False
) -> tuple[tuple[Allocation, ...], tuple[Allocation, ...]]:
    """The allocations that stay and those that leave, both in the order given; `fewer` replicas of the role leave.

    The `least` lowest ranks of the role are its core, which never leaves. Of the others the newest leave first: those
    of the highest ranks. `lonely_first`: those on the node with the fewest ranks of the job leave first, and among
    those the newest, so that nodes are left altogether. Raises ValueError if fewer than `least` would stay.
    """
    of_role = sorted((held for held in allocations if held.role == role), key=lambda held: held.rank)
    extras = of_role[least:]
    if not 0 <= fewer <= len(extras):
        raise ValueError(f"{role}: of {len(of_role)} replicas {least} stay, so {fewer} of them cannot leave")
    on_node = Counter(held.node_id for held in allocations)
    leaving: set[int] = set()
    for _ in range(fewer):
        newest = max(extras, key=lambda held: (-on_node[held.node_id] if lonely_first else 0, held.rank))
        extras.remove(newest)
        on_node[newest.node_id] -= 1
        leaving.add(newest.rank)
    stay = tuple(held for held in allocations if held.rank not in leaving)
    return stay, tuple(held for held in allocations if held.rank in leaving)


def _beside(
    free_capacity: FreeCapacity,
    allocations: Sequence[Allocation],
    want: RoleRequest,
    more: int,
    least: int,
    asked: PlacementRequest,
    placer: Placer | None,
) -> Place | None:
    """Place as many replicas as fit on the nodes of the job, and the others anywhere."""
    share = want.request.share
    if want.request.node is not None or asked.is_service or (share is not None and share.kind == Kind.INFERENCE):
        return None  # replicas of inference need not be near each other
    near = _only(free_capacity, sorted({held.node_id for held in allocations}))
    there = _find(near, want, more, 1, asked, placer)
    if there is None or len(there) == more:
        return there
    with free_capacity.supposing():
        free_capacity.take_all(there)
        elsewhere = _find(free_capacity, want, more - len(there), max(1, least - len(there)), asked, placer)
    if elsewhere is None:
        return there if len(there) >= least else None
    return (*there, *elsewhere)


def _only(free_capacity: FreeCapacity, node_ids: Sequence[str]) -> FreeCapacity:
    """A room of these nodes alone, to look for places in. It shares them with the room: nothing is taken in it."""
    part = FreeCapacity(free_capacity.scores, placer=free_capacity.placer, locality=free_capacity.locality)
    for node_id in node_ids:
        if free_capacity.is_open(node_id):
            part.nodes[node_id] = free_capacity.nodes[node_id]
            part.reopen([node_id])
    return part


def _find(
    free_capacity: FreeCapacity,
    want: RoleRequest,
    more: int,
    least: int,
    asked: PlacementRequest,
    placer: Placer | None,
) -> Place | None:
    return find(free_capacity, (structs.replace(want, least=least, count=more),), asked, placer=placer)


def _unpinned(allocations: Sequence[Allocation], want: RoleRequest) -> RoleRequest:
    """Further replicas of a role that is pinned to GPUs go behind those that it has."""
    request = want.request
    if request.gpu is None:
        return want
    held = sum(held.role == want.role for held in allocations)
    return structs.replace(want, request=structs.replace(request, gpu=request.gpu + held * request.gpus))


def is_cool(
    changed_at: float, now: float, *, restart_s: float, seconds: float, restarts: float = COOL_DOWN_RESTARTS
) -> bool:
    """Return True if the cool-down of a job whose size changed at `changed_at` is over.

    It lasts `seconds`, and at least as long as `restarts` restarts. `restart_s`: how long one restart takes; 0 for a
    job that grows and shrinks live. A restart of 30 s makes it 300 s, whether `seconds` is 0 or 120. The partition
    planner leaves a job that cools on GPUs that suit it a little less, but never beside idle ones: `ElasticJob.cools`.
    """
    return has_lasted(now - changed_at, max(seconds, restarts * restart_s))
