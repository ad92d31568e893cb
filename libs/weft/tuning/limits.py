"""Proposals about memory and egress caps."""

import math
from collections.abc import Iterable, Mapping

from weft.domain.job import Allocation, CauseCode
from weft.domain.quantity import size_text
from weft.domain.spec import EGRESS_BYTES_MIN, MEMORY_BYTES_MIN
from weft.messages.asks import RankTuning
from weft.tuning.proposal import GAIN_MIN, WORTH_MIN, Case, Proposal
from weft.tuning.split import Demand, best_split, fit, predicted
from weft.tuning.verdict import MEMORY_FULL, MEMORY_NEAR, failing_memory
from weft.tuning.window import Window

MEMORY_STEP = 0.3  # of the limit; halved after each step without success
MEMORY_GRAIN = 1 << 20
MEMORY_KEPT = 1.5  # times the most ever in use: what a reclaim leaves
MEMORY_FOLLOWED = 60.0  # seconds after its start: a tuner that follows a run only after that may have missed peaks
MEMORY_WATCHED = 60  # windows: memory unused for so long may still be needed, but hardly soon
MEMORY_SPARE = 64 << 20  # bytes: less is not worth a change
SPARE_PART = 0.1  # of the limit: less is not worth a change
EGRESS_TIMES = (8.0, 4.0, 2.0, 1.5)
EGRESS_KEPT = 1.5  # times the mean rate sent: bursts need more than their mean
EGRESS_WINDOWS = 3  # in each of which a rank needed no more
EGRESS_LOSS = 0.02  # of the time: what a lower cap may cost a rank that sends in bursts and waits for them
DONOR_LEAST = 0.25  # of its cap that a rank keeps in any case


def more_memory(case: Case) -> Proposal | None:
    """More memory for the ranks of the role that meet their limit, within what their nodes have and the envelope."""
    direction = f"memory:up:{case.stood.role}"
    windows, most = case.windows, case.bounds.memory[case.stood.role]
    free = {node: left.memory for node, left in case.free.items()}
    after: dict[int, int] = {}
    for allocation in case.allocations:
        window = windows.get(allocation.rank)
        if allocation.role != case.stood.role or window is None or failing_memory(window, None) is None:
            continue
        wanted = min(most, int(allocation.memory * (1.0 + MEMORY_STEP * case.damped(direction))))
        more = min(wanted - allocation.memory, free.get(allocation.node_id, 0)) // MEMORY_GRAIN * MEMORY_GRAIN
        if more > 0:
            after[allocation.rank] = allocation.memory + more
            free[allocation.node_id] -= more
    if not after:
        return None
    ranks = [allocation for allocation in case.allocations if allocation.rank in after]
    total = sum(allocation.memory for allocation in case.allocations)
    grown = sum(after[allocation.rank] - allocation.memory for allocation in ranks)
    first = ranks[0]
    return Proposal(
        direction=direction,
        code=CauseCode.UPSCALED,
        before=tuple(RankTuning(rank=allocation.rank, memory=allocation.memory) for allocation in ranks),
        after=tuple(RankTuning(rank=allocation.rank, memory=after[allocation.rank]) for allocation in ranks),
        gain=0.0,
        cost=grown / total,
        sentence=f"each {first.role} {size_text(first.memory)} → {size_text(after[first.rank])} of memory",
        numbers={"memory_before": float(first.memory), "memory_after": float(after[first.rank])},
    )


def less_memory(case: Case) -> Proposal | None:
    """Ranks watched for long enough keep 1.5 times the most that they used, and no less than the job's `memory_min`.

    A job that sets no `memory_min` keeps all its memory: a rank whose need grows faster than its limit is killed, and
    only the job's author knows whether the job survives that. A job that has failed before may have failed for lack
    of memory, and keeps it too.
    """
    if case.job.spec.tuning.memory_min is None:
        return None
    after: dict[int, int] = {}
    started = case.job.started_at
    if case.job.attempts or started is None or case.recent[-1].since > started + MEMORY_FOLLOWED:
        return None
    for allocation in case.allocations:
        window = case.windows.get(allocation.rank)
        if window is None or window.memory_most is None or window.watched < MEMORY_WATCHED:
            continue
        keep = max(MEMORY_BYTES_MIN, case.bounds.memory_min[allocation.role], int(MEMORY_KEPT * window.memory_most))
        keep = -(-keep // MEMORY_GRAIN) * MEMORY_GRAIN
        if allocation.memory - keep >= max(MEMORY_SPARE, SPARE_PART * allocation.memory):
            after[allocation.rank] = keep
    if not after:
        return None
    ranks = [allocation for allocation in case.allocations if allocation.rank in after]
    total = sum(allocation.memory for allocation in case.allocations)
    given = sum(allocation.memory - after[allocation.rank] for allocation in ranks)
    first = ranks[0]
    most = case.windows[first.rank].memory_most or 0
    return Proposal(
        direction="memory:less",
        code=CauseCode.RECLAIMED,
        before=tuple(RankTuning(rank=allocation.rank, memory=allocation.memory) for allocation in ranks),
        after=tuple(RankTuning(rank=allocation.rank, memory=after[allocation.rank]) for allocation in ranks),
        gain=0.0,
        cost=-given / total,
        sentence=f"each {first.role} {size_text(first.memory)} → {size_text(after[first.rank])} of memory, "
        f"its largest use was {size_text(most)}",
        numbers={"memory_before": float(first.memory), "memory_after": float(after[first.rank])},
    )


def squeezed(ranks: Iterable[Allocation], in_use: Mapping[int, int]) -> list[Allocation]:
    """The ranks that are about to need more memory than they have. `in_use`: bytes, by rank."""
    return [rank for rank in ranks if in_use.get(rank.rank, 0) >= MEMORY_NEAR * rank.memory]


def may_shrink_to(window: Window | None, memory: int) -> bool:
    """True if a rank survives with so little memory: a rank that uses more would be killed."""
    return window is None or window.memory_used is None or window.memory_used <= MEMORY_FULL * memory


def split_egress(case: Case) -> Proposal | None:
    """The sum of the job's egress caps, split by use."""
    demands = _demands(case)
    if len(demands) < 2:
        return None
    capped = _capped(case)
    found = best_split(demands, float(sum(allocation.egress or 0 for allocation in capped)))
    part = case.damped("egress:split")
    after: dict[int, int] = {}
    for allocation in capped:
        alike = sum(other.role == allocation.role for other in capped)
        now = float(allocation.egress or 0)
        most = max(now, float(case.bounds.egress[allocation.role] or 0))
        target = min(most, now + (found.by_role[allocation.role] / alike - now) * part)
        after[allocation.rank] = max(EGRESS_BYTES_MIN, int(target))
    return _egress(case, "egress:split", after, demands, CauseCode.REBALANCED)


def more_egress(case: Case) -> Proposal | None:
    """A higher cap for the role that meets its own: the link has slack, unless the user sets a total."""
    direction = f"egress:up:{case.stood.role}"
    demands, capped = _demands(case), _capped(case)
    alike = [allocation for allocation in capped if allocation.role == case.stood.role]
    total = math.inf if case.bounds.egress_total is None else case.bounds.egress_total
    room = max(0.0, total - sum(allocation.egress or 0 for allocation in capped))
    for times in EGRESS_TIMES:
        after: dict[int, int] = {}
        for allocation in alike:
            now = allocation.egress or 0
            most = case.bounds.egress[allocation.role] or now
            more = min(now * (times - 1.0) * case.damped(direction), room / len(alike))
            after[allocation.rank] = max(now, min(most, int(now + more)))
        found = _egress(case, direction, after, demands, CauseCode.UPSCALED)
        if found is not None and found.gain >= WORTH_MIN * found.cost:
            return found
    return None


def less_egress(case: Case) -> Proposal | None:
    """A raised cap goes back towards what was asked for, as far as that makes sending take little longer."""
    if len(case.recent) < EGRESS_WINDOWS:
        return None
    after: dict[int, int] = {}
    for allocation in _capped(case):
        cap = float(allocation.egress or 0)
        sent = [rank.network_send_rate for one in case.recent for rank in one.ranks if rank.rank == allocation.rank]
        most = max((math.inf if rate is None else rate for rate in sent), default=math.inf)
        if most > cap:
            continue
        highest = float(case.bounds.egress[allocation.role] or cap)  # not the cap now: it would shrink for ever
        keep = max(case.bounds.egress_min[allocation.role] or 0, math.ceil(most / (most / highest + EGRESS_LOSS)))
        if cap - keep >= SPARE_PART * cap:
            after[allocation.rank] = keep
    return _egress(case, "egress:less", after, _demands(case), CauseCode.RECLAIMED)


def _capped(case: Case) -> list[Allocation]:
    return [allocation for allocation in case.allocations if allocation.egress is not None]


def _demands(case: Case) -> list[Demand]:
    """One demand per role with a cap; empty if the rate that any rank sends is unknown."""
    windows, by_role = case.windows, dict[str, list[tuple[Allocation, Window]]]()
    for allocation in _capped(case):
        window = windows.get(allocation.rank)
        if window is None or window.network_send_rate is None:
            return []
        by_role.setdefault(allocation.role, []).append((allocation, window))
    return [_demand(case, role, ranks) for role, ranks in by_role.items()]


def _demand(case: Case, role: str, ranks: list[tuple[Allocation, Window]]) -> Demand:
    given = part = least = 0.0
    for allocation, window in ranks:
        cap, sent = float(allocation.egress or 1), window.network_send_rate or 0.0
        given += cap
        told = window.phase_part("t_push") or 0.0
        part = max(part, min(1.0, sent / cap), told if role == case.stood.role else 0.0)
        least += min(cap, max(EGRESS_KEPT * sent, DONOR_LEAST * cap, EGRESS_BYTES_MIN))
    return Demand(role=role, given=given, part=part, most=1e15, least=least)


def _egress(
    case: Case, direction: str, after: dict[int, int], demands: list[Demand], code: CauseCode
) -> Proposal | None:
    ranks = [rank for rank in _capped(case) if after.get(rank.rank, rank.egress) != rank.egress]
    if not ranks or not demands:
        return None
    by_role: dict[str, float] = {}
    for allocation in _capped(case):
        by_role[allocation.role] = by_role.get(allocation.role, 0.0) + after.get(
            allocation.rank, allocation.egress or 0
        )
    fitted = fit([demand.part for demand in demands])
    now = predicted(demands, {demand.role: demand.given for demand in demands}, fitted)
    gain = now / max(predicted(demands, by_role, fitted), 1e-9) - 1.0
    if gain < GAIN_MIN and code is not CauseCode.RECLAIMED:
        return None
    total = sum(demand.given for demand in demands)
    first: dict[str, Allocation] = {}
    for allocation in ranks:
        first.setdefault(allocation.role, allocation)
    return Proposal(
        direction=direction,
        code=code,
        before=tuple(RankTuning(rank=allocation.rank, egress=allocation.egress) for allocation in ranks),
        after=tuple(RankTuning(rank=allocation.rank, egress=after[allocation.rank]) for allocation in ranks),
        gain=0.0 if code is CauseCode.RECLAIMED else gain,
        cost=(sum(by_role.values()) - total) / total,
        sentence=", ".join(
            f"each {role} {size_text(one.egress or 0)}/s → {size_text(after[one.rank])}/s"
            for role, one in first.items()
        ),
        numbers={"egress_before": total, "egress_after": sum(by_role.values())},
    )
