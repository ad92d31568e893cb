"""Advice about jobs: verdicts, proposed changes, and findings that no change of limits can remedy."""

from collections.abc import Sequence

from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.domain.text import plural
from weft.messages.signals import NOT_TUNED, Finding, RankVerdict
from weft.planning.capacity import free_capacity_of
from weft.planning.resource_request import resource_request_of
from weft.tuning.cause import Stood
from weft.tuning.proposal import Proposal
from weft.tuning.window import JobWindow

IDLE_BELOW = 0.05  # utilisation of the least used GPU that a rank holds
_CODES = {
    "cpus:up": "more-cpu",
    "memory:up": "more-memory",
    "egress:up": "more-network",
    "cpus:less": "less-cpu",
    "memory:less": "less-memory",
    "egress:less": "less-network",
}


def short_of_replicas(running: Sequence[Job], holding: Sequence[Job], nodes: Sequence[Node]) -> list[Finding]:
    """Jobs that run with fewer replicas than they want although more would fit."""
    short = [job for job in running if _missing(job)]
    if not short:
        return []
    room = free_capacity_of(nodes, holding)
    findings: list[Finding] = []
    for job in short:
        for role, missing in _missing(job).items():
            request = next(want.request for want in resource_request_of(job.spec) if want.role == role)
            fits = min(missing, sum(node.count(request, missing) for node in room.open_nodes))
            if fits:
                sentence = f"{job.name} runs with {missing} {role} fewer than it wants; {fits} would fit"
                numbers = {"missing": float(missing), "would_fit": float(fits)}
                findings.append(Finding(code="grow", job_id=job.id, sentence=sentence, numbers=numbers))
    return findings


def idle_gpus(job: Job, window: JobWindow) -> list[Finding]:
    assert job.placement is not None
    nodes = {allocation.rank: allocation.node_id for allocation in job.placement.allocations}
    return [
        Finding(
            code="idle-gpu",
            job_id=job.id,
            node_id=nodes.get(rank.rank, ""),
            sentence=f"rank {rank.rank} of {job.name} leaves its {rank.gpus} GPUs idle",
            numbers={"utilisation": rank.gpu_utilisation},
        )
        for rank in window.ranks
        if rank.gpus and rank.gpu_utilisation is not None and rank.gpu_utilisation < IDLE_BELOW
    ]


def not_tuned(job: Job, nodes: Sequence[str]) -> Finding:
    """Say that nodes of the job enforce no limits, so that no change of a limit could have an effect."""
    where = f"{nodes[0]} holds" if len(nodes) == 1 else f"{nodes[0]} and {plural(len(nodes) - 1, 'more node')} hold"
    sentence = f"{job.name}: its CPU, memory and egress are not tuned: {where} jobs to no CPU limit"
    return Finding(code=NOT_TUNED, job_id=job.id, node_id=nodes[0], sentence=sentence)


def _missing(job: Job) -> dict[str, int]:
    """How many wanted replicas of each role are missing."""
    assert job.placement is not None
    missing: dict[str, int] = {}
    for name, wanted in job.wanted.items():
        have = sum(allocation.role == name for allocation in job.placement.allocations)
        if have < wanted:
            missing[name] = wanted - have
    return missing


def as_finding(job: Job, proposal: Proposal, stood: Stood) -> Finding:
    resource, way, *_ = proposal.direction.split(":")
    return Finding(
        code=_CODES.get(f"{resource}:{way}", "rebalance"),
        job_id=job.id,
        sentence=f"{job.name}: {proposal.sentence}: {stood.reading.sentence}",
        numbers={**proposal.numbers, "gain_predicted": round(proposal.gain, 6)},
    )


def as_verdict(job: Job, subject: int, stood: Stood) -> RankVerdict:
    return RankVerdict(
        job_id=job.id,
        epoch=job.epoch,
        rank=subject,
        code=stood.reading.code,
        sentence=stood.reading.sentence,
        numbers=stood.reading.numbers,
        since=stood.since,
    )
