"""The health of GPUs and nodes: judged at each report, stored with the node, and the steps of the runs on sick GPUs."""

from collections.abc import Iterable, Sequence

from msgspec import structs

from weft.domain.cluster import Node
from weft.domain.health import HealthRecord, Tally
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobState, Step
from weft.health.catalogue import FAILS_OFTEN, LEMON
from weft.health.lemons import LemonRules, after_alarm, began, failed, fleet_rate, numbers_text, signs_of
from weft.health.pool import PoolBound, judged_node
from weft.health.state import HealthTimes, Reading, returned
from weft.messages.asks import Ask
from weft.messages.nodes import GpuSigns, NodeReported, NodeSigns
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.state.cluster_state import ClusterState

_OWN_SIGNS = frozenset({FAILS_OFTEN, LEMON})
HEALTH = "health"
"""The event of a node that says that the state of one of its GPUs, or its own, is another one."""


def judge(cluster_state: ClusterState, report: NodeReported, now: float, times: HealthTimes) -> None:
    """Judge the signs of a node. A node without telemetry reports none, and keeps its states."""
    node = cluster_state.pool.nodes.get(report.node_id)
    signs = report.signs
    if node is None:
        return
    if signs is None:
        _end_lemon(cluster_state, node, report, now, times)
        return
    if not (signs.gpus or signs.levels or node.health):
        return
    bound = PoolBound(cluster_state.pool.nodes.values)
    health = judged_node(node.health, _readings(node, report, signs), now, times, bound)
    _keep(cluster_state, node, health, now)


def _end_lemon(cluster_state: ClusterState, node: Node, report: NodeReported, now: float, times: HealthTimes) -> None:
    """End the states that the scheduler found by itself on a node without telemetry; its other states stay."""
    own = node.own_health
    if own is None or own.well or own.code not in _OWN_SIGNS:
        return
    reading = Reading(node_id=node.id, boot=own.boot, node_boot=report.boot_id)
    bound = PoolBound(cluster_state.pool.nodes.values)
    _keep(cluster_state, node, judged_node(node.health, [reading], now, times, bound), now)


def count_failures(cluster_state: ClusterState, now: float, times: HealthTimes, rules: LemonRules) -> None:
    """Count the runs that failed by no fault of their jobs, and take a node out of use on which far more fail than
    elsewhere."""
    for run in cluster_state.outcomes.take_failed():
        node = cluster_state.pool.nodes.get(run.node_id)
        if node is None:
            continue
        rate = fleet_rate(
            (_tally(cluster_state, each) for each in cluster_state.pool.nodes.values() if each is not node), rules
        )
        own = node.own_health or HealthRecord(since=now)
        placed = cluster_state.outcomes.take_placed(node.id)
        tally = failed(began(own.tally or Tally(), placed, rate, rules), run.job_id, rate, now, rules)
        _count(cluster_state, node, structs.replace(own, tally=tally), rate, now, times, rules)


def _count(
    cluster_state: ClusterState,
    node: Node,
    own: HealthRecord,
    rate: float,
    now: float,
    times: HealthTimes,
    rules: LemonRules,
) -> None:
    """Judge the node by its tally, and store that."""
    tally = own.tally or Tally()
    levels = signs_of(tally, len(cluster_state.pool.nodes), rules)
    told = numbers_text(tally, rate, rules)
    if own.well:
        own = structs.replace(own, sentence=told)
    known = (own, *(each for each in node.health if each.gpu is not None))
    if levels and not own.closed:
        reading = Reading(node_id=node.id, levels=levels, detail=told, boot=own.boot, node_boot=own.node_boot)
        known = judged_node(known, [reading], now, times, PoolBound(cluster_state.pool.nodes.values))
        if known[0].closed:
            known = (structs.replace(known[0], tally=after_alarm(tally, rules)), *known[1:])
    _keep(cluster_state, node, known, now)


def _tally(cluster_state: ClusterState, node: Node) -> Tally:
    own = node.own_health
    tally = Tally() if own is None or own.tally is None else own.tally
    return structs.replace(tally, runs=tally.runs + cluster_state.outcomes.placed.get(node.id, 0))


def give_back(cluster_state: ClusterState, ask: Ask, now: float, times: HealthTimes) -> None:
    """A person returns a GPU of a node, or without a GPU the node and all of its GPUs."""
    node = cluster_state.pool.nodes.get(ask.subject_id)
    if node is None:
        return
    health = tuple(
        returned(each, ask.by, now, times) if ask.gpu in (None, each.gpu) and not each.well else each
        for each in node.health
    )
    _keep(cluster_state, node, health, now, ask=ask.id)


def end_runs(cluster_state: ClusterState, node_id: str, now: float) -> list[Step]:
    """End the runs on the lost GPUs of a node, and those that have not begun on its other GPUs that are out of use:
    their jobs go elsewhere, and are charged no try."""
    node = cluster_state.pool.nodes[node_id]
    if not node.closed_gpus:
        return []
    steps: list[Step] = []
    for job_id in sorted(cluster_state.pool.runs.jobs_on(node_id)):
        job = cluster_state.jobs[job_id]
        hit = _hit(cluster_state, job, node)
        if not hit or job.state is JobState.STOPPING:
            continue
        cause = _cause(node, hit)
        alone = job.spec.is_service or all(allocation.extra for allocation in hit)
        if job.state is JobState.RUNNING and alone:
            steps += lifecycle.give_up_ranks(cluster_state, job, hit, cause, now)
        else:
            steps += lifecycle.stop(cluster_state, job, cause, now)
    return steps


def _hit(cluster_state: ClusterState, job: Job, node: Node) -> list[Allocation]:
    assert job.placement is not None
    lost, closed = node.lost_gpus, node.closed_gpus
    return [
        each
        for each in job.placement.allocations
        if each.node_id == node.id
        and not each.leaving
        and (
            lost.intersection(each.gpus)
            or (closed.intersection(each.gpus) and not cluster_state.pool.runs.began(job, each))
        )
    ]


def _cause(node: Node, hit: Sequence[Allocation]) -> Cause:
    gpu = min(index for each in hit for index in each.gpus if index in node.closed_gpus)
    health = node.health_of(gpu)
    assert health is not None
    sentence = f"GPU {gpu} of node {node.id} failed: {health.sentence}"
    numbers = {**health.numbers, "gpu": float(gpu), "rank": float(hit[0].rank)}
    return Cause(code=CauseCode.GPU_FAILED, sentence=sentence, by=node.id, numbers=numbers)


def _readings(node: Node, report: NodeReported, signs: NodeSigns) -> Iterable[Reading]:
    by_index = {each.index: each for each in signs.gpus}
    yield Reading(node_id=node.id, levels=signs.levels, boot=signs.boot, node_boot=report.boot_id)
    for gpu in node.capacity.gpus:
        each = by_index.get(gpu.index) or GpuSigns(index=gpu.index)
        yield Reading(
            node_id=node.id,
            gpu=gpu.index,
            uuid=gpu.uuid,
            xids=each.xids,
            resets=each.resets,
            levels=each.levels,
            detail=each.detail,
            boot=signs.boot,
            node_boot=report.boot_id,
        )


def _keep(
    cluster_state: ClusterState, node: Node, health: tuple[HealthRecord, ...], now: float, *, ask: int = 0
) -> None:
    """Store the states if they changed, with an event if a person should read of it."""
    if health == node.health and not ask:
        return
    before = {each.gpu: each for each in node.health}
    told = [each for each in health if _is_news(before.get(each.gpu), each)]
    sentence = "; ".join(_sentence(each) for each in told)
    node = structs.replace(node, health=health, seen_at=cluster_state.pool.heard.get(node.id, node.seen_at))
    cluster_state.change_node(node, HEALTH if told else "", sentence, at=now, ask=ask)
    if told:
        cluster_state.desired.hint([node.id])


def _is_news(before: HealthRecord | None, after: HealthRecord) -> bool:
    if before is None:
        return not after.well
    return (before.state, before.code, before.due) != (after.state, after.code, after.due)


def _sentence(health: HealthRecord) -> str:
    what = "the node" if health.gpu is None else f"GPU {health.gpu}"
    until = f"; {health.exit}" if health.due else f" (until: {health.exit})" if health.exit else ""
    return f"{what} is {'on ' * (health.state == 'probation')}{health.state}: {health.sentence}{until}"
