"""Proposals about CPU: another split among the ranks of a job, more of it, or less for ranks that leave it unused."""

import math
from collections.abc import Iterable, Mapping

from weft.domain.job import Allocation, CauseCode
from weft.messages.asks import RankTuning
from weft.samples.thresholds import THROTTLED, UNTHROTTLED
from weft.tuning.envelope import CPUS_MIN, cpus_of, grained
from weft.tuning.proposal import GAIN_MIN, WORTH_MIN, Case, Proposal
from weft.tuning.split import Demand, best_split, fit, predicted
from weft.tuning.verdict import SPARE_CPUS, spare_cpu
from weft.tuning.window import Window

KEPT_OVER_USE = 1.2  # times the 95th percentile of use: no rank gets less
GROWTH_FIRST = 0.5  # of what the role has, halved after each step without success
FAR = 0.5  # throttled this much or more: the model sets how far to grow; otherwise one step is tried
STEPS_OF_BUDGET = (1.0, 0.5, 0.25, 0.125)
ALIKE = 0.15  # ranks of a role whose use differs by less get the same
SMALLEST = 0.02  # cores: smaller changes of a rank are left out
RECLAIM_WINDOWS = 3
CPUS_FLOOR = 0.1  # cores that a reclaim leaves


def split(case: Case) -> Proposal | None:
    """The cores that the job has, split by measured use."""
    demands = demands_of(case)
    if not demands or (len(demands) < 2 and not _uneven(case)):
        return None
    found = best_split(demands, cpus_of(case.allocations))
    after = _fitting(case, _shared(case, found.by_role, case.damped("cpus:split")))
    return _proposal(case, "cpus:split", after, demands, CauseCode.REBALANCED)


def more(case: Case) -> Proposal | None:
    """More of what is free on its nodes, within its envelope and as far as the model predicts that it pays."""
    direction = f"cpus:up:{case.stood.role}"
    given, demands = cpus_of(case.allocations), demands_of(case)
    if not demands:
        return None  # of some rank it is not known, as where the telemetry of its node is away
    nodes = {allocation.node_id for allocation in case.allocations}
    free = sum(case.free[node].cpus for node in nodes if node in case.free)
    room = min(case.bounds.cpus - given, free)
    throttled = max((window.cpu_throttled or 0.0 for window in case.windows.values()), default=0.0)
    first = throttled >= FAR and not case.tried.get(direction)
    if not first:
        of_role = sum(demand.given for demand in demands if demand.role == case.stood.role)
        room = min(room, of_role * GROWTH_FIRST * case.damped(direction))
    for part in STEPS_OF_BUDGET:
        if room * part < SMALLEST:
            return None
        found = best_split(demands, given + room * part)
        after = _fitting(case, _shared(case, found.by_role, 1.0))
        proposal = _proposal(case, direction, after, demands, CauseCode.UPSCALED)
        if proposal is not None and proposal.gain >= WORTH_MIN * proposal.cost:
            return proposal
    return None


def less(case: Case) -> Proposal | None:
    """Ranks that left much CPU unused in three windows in a row keep 1.2 times their busiest use."""
    if len(case.recent) < RECLAIM_WINDOWS or case.stood.times < RECLAIM_WINDOWS:
        return None
    after: dict[int, float] = {}
    for allocation in case.allocations:
        windows = [rank for window in case.recent for rank in window.ranks if rank.rank == allocation.rank]
        most = max((window.cpus_p95 or math.inf for window in windows), default=math.inf)
        keep = max(CPUS_FLOOR, KEPT_OVER_USE * most)
        spare = all(spare_cpu(window, None) is not None for window in windows)
        if spare and allocation.cpus - keep >= SPARE_CPUS:
            after[allocation.rank] = math.ceil(keep * 100) / 100
    return _proposal(case, "cpus:less", after, demands_of(case), CauseCode.RECLAIMED) if after else None


def demands_of(case: Case) -> list[Demand]:
    """One demand per role; empty if the CPU use of any rank is unknown."""
    by_role: dict[str, list[tuple[Allocation, Window]]] = {}
    windows = case.windows
    for allocation in case.allocations:
        window = windows.get(allocation.rank)
        if window is None or window.cpus_used is None:
            return []
        by_role.setdefault(allocation.role, []).append((allocation, window))
    return [_demand(role, ranks) for role, ranks in by_role.items()]


def _demand(role: str, ranks: Iterable[tuple[Allocation, Window]]) -> Demand:
    given = part = most = least = 0.0
    for allocation, window in ranks:
        uses = window.cpus_used or 0.0
        could = _could_use(window, allocation.cpus)
        given, most = given + allocation.cpus, most + could
        part = max(part, uses / min(allocation.cpus, could))
        if (window.cpu_throttled or 0.0) < UNTHROTTLED:
            least += min(allocation.cpus, max(CPUS_MIN, KEPT_OVER_USE * (window.cpus_p95 or uses)))
        else:
            least += min(allocation.cpus, CPUS_MIN)
    return Demand(role=role, given=given, part=part, most=most, least=least)


def _could_use(window: Window, given: float) -> float:
    """One core per busy thread, at least one. Where threads are not reported, an unthrottled rank has enough."""
    throttled = (window.cpu_throttled or 0.0) >= UNTHROTTLED
    if window.busiest_thread and window.cpus_used:
        threads = max(1.0, math.ceil(window.cpus_used / max(window.busiest_thread, 1e-3) - 0.2))
        return max(threads, given) if throttled else threads
    return 1e6 if throttled else max(given, 1e-3)


def _uneven(case: Case) -> bool:
    """True if some ranks of the job are throttled while others are not."""
    throttled = [window.cpu_throttled or 0.0 for window in case.windows.values()]
    return min(throttled) < UNTHROTTLED and max(throttled) >= THROTTLED


def _shared(case: Case, by_role: Mapping[str, float], part: float) -> dict[int, float]:
    """Cores of each rank if each role gets `by_role` in all; each rank goes only `part` of the way there."""
    windows, after = case.windows, {}
    for role, total in by_role.items():
        ranks = [allocation for allocation in case.allocations if allocation.role == role]
        uses = [windows[allocation.rank].cpus_used or 0.0 for allocation in ranks]
        if max(uses) <= (1.0 + ALIKE) * min(uses):
            uses = [1.0] * len(ranks)
        for allocation, use in zip(ranks, uses, strict=True):
            target = max(CPUS_MIN, total * max(use, 1e-3) / sum(max(each, 1e-3) for each in uses))
            after[allocation.rank] = allocation.cpus + (target - allocation.cpus) * part
    return after


def _fitting(case: Case, after: Mapping[int, float]) -> dict[int, float]:
    """The changes that fit what each node has free plus what ranks of the job give back there; small ones left out."""
    fitting: dict[int, float] = {}
    by_node: dict[str, list[Allocation]] = {}
    for allocation in case.allocations:
        by_node.setdefault(allocation.node_id, []).append(allocation)
    for node, held in by_node.items():
        changes = {
            rank.rank: after[rank.rank] - rank.cpus for rank in held if abs(after[rank.rank] - rank.cpus) >= SMALLEST
        }
        grows = sum(change for change in changes.values() if change > 0)
        gives = -sum(change for change in changes.values() if change < 0)
        free = max(0.0, case.free[node].cpus) if node in case.free else 0.0
        scale = min(1.0, (free + gives) / grows) if grows > 0 else 1.0
        for rank in held:
            if change := changes.get(rank.rank):
                wanted = grained(rank.cpus + (change * scale if change > 0 else change))
                if wanted > 0 and wanted != rank.cpus:
                    fitting[rank.rank] = wanted
    return fitting


def _proposal(
    case: Case, direction: str, after: Mapping[int, float], demands: list[Demand], code: CauseCode
) -> Proposal | None:
    """None if the change is not worth a try, or exceeds the envelope."""
    if not after or not demands:
        return None
    before = cpus_of(case.allocations)
    total = sum(after.get(allocation.rank, allocation.cpus) for allocation in case.allocations)
    reclaim = code is CauseCode.RECLAIMED
    if total > max(before, case.bounds.cpus if code is CauseCode.UPSCALED else before) + 1e-9:
        return None
    by_role: dict[str, float] = {}
    for allocation in case.allocations:
        by_role[allocation.role] = by_role.get(allocation.role, 0.0) + after.get(allocation.rank, allocation.cpus)
    fitted = fit([demand.part for demand in demands])
    now = predicted(demands, {demand.role: demand.given for demand in demands}, fitted)
    gain = now / max(predicted(demands, by_role, fitted), 1e-9) - 1.0
    if gain < GAIN_MIN and not reclaim and not (code is CauseCode.REBALANCED and _uneven(case)):
        return None
    ranks = [allocation for allocation in case.allocations if allocation.rank in after]
    return Proposal(
        direction=direction,
        code=code,
        before=tuple(RankTuning(rank=allocation.rank, cpus=allocation.cpus) for allocation in ranks),
        after=tuple(RankTuning(rank=allocation.rank, cpus=after[allocation.rank]) for allocation in ranks),
        gain=0.0 if reclaim else gain,
        cost=(total - before) / before,
        sentence=_words(ranks, after) + f"; in all {before:.2f} → {total:.2f} cores",
        numbers={"cpus_before": round(before, 3), "cpus_after": round(total, 3), "cpus_allowed": case.bounds.cpus},
    )


def _words(ranks: list[Allocation], after: Mapping[int, float]) -> str:
    """The change in words, by the first rank of each role."""
    first: dict[str, Allocation] = {}
    for allocation in ranks:
        first.setdefault(allocation.role, allocation)
    return ", ".join(
        f"each {role} {allocation.cpus:.2f} → {after[allocation.rank]:.2f} cores" for role, allocation in first.items()
    )
