"""Drains of nodes by a person: a drained node takes no new work, its runs may have to leave, and a drain may have an
end."""

from msgspec import structs

from weft.domain.cluster import Drain, Node
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobState, Step
from weft.messages.asks import Ask, AskKind
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.state.cluster_state import ClusterState

ENDING = "it announced its shutdown"


def announced(known: Drain | None, *, ending: bool) -> Drain | None:
    """The drain of a node after a report that announces its shutdown, or none. A person's own drain stays, and evicts
    then."""
    if not ending:
        return None if known is not None and known.announced else known
    return structs.replace(known or Drain(reason=ENDING, announced=True), evicts=True)


def drain(cluster_state: ClusterState, ask: Ask, now: float) -> None:
    """A person drains a node, changes how, or lets it take work again."""
    node = cluster_state.pool.nodes.get(ask.subject_id)
    wanted = (ask.drain or Drain()) if ask.kind is AskKind.DRAIN else None
    if node is None or node.drain == wanted:
        return
    sentence = "resumed" if wanted is None else f"drained{wanted.text}"
    _change(cluster_state, node, wanted, f"{sentence} by {ask.by}", now, ask=ask.id)


def decide(cluster_state: ClusterState, now: float) -> list[Step]:
    """End the drains whose time is over, and let runs leave evicting nodes without using a retry."""
    steps: list[Step] = []
    for node in [node for node in cluster_state.pool.nodes.values() if node.drain is not None]:
        assert node.drain is not None
        if node.drain.until is not None and now >= node.drain.until:
            _change(cluster_state, node, None, "resumed: its drain has ended", now)
        elif node.drain.evicts and node.ready:
            steps += _evict(cluster_state, node, node.drain, now)
    return steps


def _evict(cluster_state: ClusterState, node: Node, drained: Drain, now: float) -> list[Step]:
    cause = Cause(code=CauseCode.NODE_DRAINED, sentence=f"node {node.id} is drained{drained.text}", by=node.id)
    steps: list[Step] = []
    for job_id in sorted(cluster_state.pool.runs.jobs_on(node.id)):
        job = cluster_state.jobs[job_id]
        if job.placement is None or job.state is JobState.STOPPING:
            continue
        hit = [each for each in job.placement.staying if each.node_id == node.id]
        if not hit:
            continue
        if job.state is JobState.RUNNING and job.spec.is_service:
            steps += lifecycle.give_up_ranks(cluster_state, job, _next_replica(cluster_state, job, hit), cause, now)
        elif job.state is JobState.RUNNING and all(each.extra for each in hit):
            steps += lifecycle.give_up_ranks(cluster_state, job, hit, cause, now)
        else:
            steps += lifecycle.stop(cluster_state, job, cause, now)
    return steps


def _next_replica(cluster_state: ClusterState, job: Job, hit: list[Allocation]) -> list[Allocation]:
    """One replica at a time, and only once its others run: a service answers on while a node is emptied."""
    assert job.placement is not None
    others = [each for each in job.placement.staying if each not in hit]
    leaves = any(each.leaving for each in job.placement.allocations)
    starts = len(others) + len(hit) < sum(job.wanted.values())
    begins = any(not cluster_state.pool.runs.began(job, each) for each in others)
    return [] if leaves or starts or begins else hit[:1]


def _change(
    cluster_state: ClusterState, node: Node, drained: Drain | None, sentence: str, now: float, *, ask: int = 0
) -> None:
    node = structs.replace(node, drain=drained, seen_at=cluster_state.pool.heard.get(node.id, node.seen_at))
    cluster_state.change_node(node, "resumed" if drained is None else "drained", sentence, at=now, ask=ask)
