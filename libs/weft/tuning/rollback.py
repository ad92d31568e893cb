"""The limits that a rollback asks for when other jobs have taken a part of the room meanwhile."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from weft.domain.job import Allocation, CauseCode, Job
from weft.messages.asks import RankTuning
from weft.tuning.envelope import grained
from weft.tuning.held import has_between
from weft.tuning.proposal import Free, Proposal

PART_MIN = 0.05  # of the amount wanted: less is not worth a change


def as_it_fits(job: Job, proposal: Proposal, free: Mapping[str, Free], *, again: int) -> tuple[RankTuning, ...]:
    """The limits to ask for: a reclaim is undone as far as there is room, any other change in full or not at all.

    A node kept for a waiting job gives other jobs no more than they asked for, and the tuner does not know which nodes
    are kept: every second ask is for no more than that. `again`: how often the rollback was asked for so far.
    """
    assert job.placement is not None
    if proposal.code is not CauseCode.RECLAIMED:
        return proposal.before
    wanted = _as_asked(job, proposal.before) if again % 2 else proposal.before
    return that_fits(wanted, job.placement.allocations, free)


def is_under_way(job: Job, proposal: Proposal) -> bool:
    """Whether the job has what the trial gave it, or a part of a reclaim back; if not, another ask changed the job."""
    reclaimed = proposal.code is CauseCode.RECLAIMED
    return has_between(job, proposal.after, proposal.before if reclaimed else proposal.after)


def that_fits(
    wanted: Sequence[RankTuning], allocations: Sequence[Allocation], free: Mapping[str, Free]
) -> tuple[RankTuning, ...]:
    """The wanted CPU and memory as far as each node has them left: the ranks of one node all get the same part of the
    increase, or none if that part is tiny. Egress is as wanted."""
    held = {allocation.rank: allocation for allocation in allocations}
    parts = {
        node: _part(
            [(limit, held[limit.rank]) for limit in wanted if held[limit.rank].node_id == node],
            free.get(node, Free(cpus=0.0, memory=0)),
        )
        for node in {held[limit.rank].node_id for limit in wanted}
    }
    fitting: list[RankTuning] = []
    for limit in wanted:
        has = held[limit.rank]
        of_cpus, of_memory = parts[has.node_id]
        cpus, memory = limit.cpus, limit.memory
        if cpus is not None and of_cpus < 1.0:
            cpus = max(has.cpus, grained(has.cpus + of_cpus * (cpus - has.cpus)))
        if memory is not None and of_memory < 1.0:
            memory = has.memory + int(of_memory * (memory - has.memory))
        fitting.append(structs.replace(limit, cpus=cpus, memory=memory))
    return tuple(fitting)


def _part(pairs: Sequence[tuple[RankTuning, Allocation]], left: Free) -> tuple[float, float]:
    """Which part of the wanted increase in CPU, and in memory, the node of these ranks can give."""
    cpus = sum(limit.cpus - has.cpus for limit, has in pairs if limit.cpus is not None)
    memory = sum(limit.memory - has.memory for limit, has in pairs if limit.memory is not None)
    return _met(cpus, left.cpus), _met(memory, left.memory)


def _met(more: float, left: float) -> float:
    part = 1.0 if more <= left else left / more
    return part if part >= PART_MIN else 0.0


def _as_asked(job: Job, limits: Sequence[RankTuning]) -> tuple[RankTuning, ...]:
    """The limits, but no more than each rank has, or its role asked for."""
    assert job.placement is not None
    has = {allocation.rank: allocation for allocation in job.placement.allocations}
    found: list[RankTuning] = []
    for limit in limits:
        one, role = has[limit.rank], job.spec.roles[has[limit.rank].role]
        cpus = None if limit.cpus is None else min(limit.cpus, max(one.cpus, role.cpus))
        memory = None if limit.memory is None else min(limit.memory, max(one.memory, role.memory_bytes))
        found.append(structs.replace(limit, cpus=cpus, memory=memory))
    return tuple(found)
