"""Plans the sizes of a pool's elastic jobs each minute; `weft.planning.partition` decides.

Capacity for services, present and future, is subtracted first. A job is elastic in one role, the one with the widest
range; its other roles stay unchanged. A new size is a command like a user's: the scheduler executes it when there is
room.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from math import ceil, inf
from operator import attrgetter

from msgspec import Struct, structs

from weft.domain.checkpoints import lost_seconds
from weft.domain.classes import JOB_CLASSES, is_benchmark, workload_of
from weft.domain.cluster import Node
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobState
from weft.domain.quantity import duration_text
from weft.domain.quotas import ALL, Quota
from weft.domain.shares import WHOLE, gpus_held
from weft.domain.sizes import RESTART_SECONDS_MAX, RestartCost, how_resized
from weft.domain.spec import ResizeHow, Role, TuningMode
from weft.messages.asks import Scale
from weft.messages.nodes import ProgressSeen
from weft.messages.signals import Curve, Finding, GpuScore
from weft.planning.locality import Locality
from weft.planning.partition import Change, ElasticJob, Partition, Partitioner, Rules, Server
from weft.planning.partition.seen import amounts_of, most_of, placed, server_of
from weft.planning.quota.amounts import ledger_of
from weft.planning.quota.ledger import TenantHolds
from weft.planning.quota.ranks import left_to
from weft.planning.quota.tree import due_of
from weft.planning.resizing import COOL_DOWN_SECONDS, is_cool
from weft.planning.scores import GpuKey, Scores
from weft.planning.shares import NOTHING, Amounts
from weftd.reallocator.thinking.asha import STEP
from weftd.reallocator.thinking.kinds import Kinds, elastic_role, on_gpus

JOBS_MAX = 1000  # jobs in one plan: those that hold resources, then those that have waited longest
RESTART_SECONDS = 30.0  # cost for a workload that never restarted, besides its grace and its lost work
RESTARTS_KEPT = 1000  # workloads with known restart costs


class Plans(Struct, frozen=True, kw_only=True):
    """Settings of the partition planner. `seconds`: time between two plans. `cool_down_seconds`: the shortest cool-down
    (`weft.planning.resizing`)."""

    mode: TuningMode = TuningMode.ON
    rules: Rules = Rules()
    seconds: float = 60.0
    cool_down_seconds: float = COOL_DOWN_SECONDS


class PlannedSizes(Struct, frozen=True, kw_only=True):
    """The sizes to request, by job, and each of them as a finding."""

    sizes: Mapping[str, Scale] = {}
    findings: tuple[Finding, ...] = ()


class SizePlanner:
    def __init__(self, plans: Plans, planner: Partitioner) -> None:
        self._plans = plans
        self._planner = planner
        self._planned_at = -inf
        self._restarting: dict[str, tuple[float, int]] = {}  # by job that stops to resize: time of the stop, and epoch
        self._first_steps: dict[str, float] = {}  # by restarting job: time of the first reported step in the new epoch
        self._costs: dict[str, RestartCost] = {}  # by workload
        self._unsaved: dict[str, RestartCost] = {}

    def restart_cost(self, job: Job) -> float:
        """Seconds that a resize costs the job: its restart, and the work since its last checkpoint; 0 if it resizes
        live."""
        if how_resized(job.spec) is not ResizeHow.RESTART:
            return 0.0
        known = self._costs.get(workload_of(job.spec))
        cost = RESTART_SECONDS + job.spec.grace_seconds if known is None else known.seconds
        return cost + (lost_seconds(job.spec) or 0.0)

    def hear(self, seen: ProgressSeen, *, now: float) -> None:
        """Note when restarting jobs report their first step. Times of clocks ahead of ours are ignored."""
        for run in seen.runs:
            restarting = self._restarting.get(run.job_id)
            if restarting is not None and run.epoch == restarting[1] + 1 and STEP in run.progress:
                self._first_steps.setdefault(run.job_id, min(run.at or now, now))

    def watch(self, holding: Iterable[Job]) -> None:
        """Measure how long jobs take to restart with another size: until their first step, if they reported steps
        before, else until they run. `holding`: all jobs that hold resources; others are queued again or have ended, and
        are not measured."""
        restarting: dict[str, tuple[float, int]] = {}
        for job in holding:
            if job.next_placement is not None:
                restarting[job.id] = (job.since, job.epoch)
                continue
            stopped_at, epoch = self._restarting.get(job.id, (0.0, job.epoch))
            if job.epoch != epoch + 1:
                continue
            ready_at = self._ready_at(job)
            if ready_at is None:
                restarting[job.id] = (stopped_at, epoch)
            else:
                self._measured(workload_of(job.spec), ready_at - stopped_at, at=ready_at)
        self._first_steps = {job_id: at for job_id, at in self._first_steps.items() if job_id in restarting}
        self._restarting = restarting

    def _ready_at(self, job: Job) -> float | None:
        """The time at which a restarted job works again; None if it does not yet. Its progress until the stop is
        stored: a job that reported no step before is not expected to report one."""
        if job.state is not JobState.RUNNING or job.started_at is None:
            return None
        if STEP not in job.progress:
            return job.started_at
        first = self._first_steps.get(job.id)
        return None if first is None else max(first, job.started_at)

    @property
    def unsaved(self) -> Sequence[RestartCost]:
        """Measured costs of restarts that are not stored yet."""
        return tuple(self._unsaved.values())

    def saved(self, costs: Iterable[RestartCost]) -> None:
        for cost in costs:
            if self._unsaved.get(cost.workload) == cost:
                del self._unsaved[cost.workload]

    def recall(self, costs: Iterable[RestartCost]) -> None:
        """Adopt stored costs, except those that are older than the known ones."""
        for cost in costs:
            known = self._costs.get(cost.workload)
            if known is None or known.at <= cost.at:
                self._costs[cost.workload] = cost
        self._costs = _newest(self._costs)

    def _measured(self, workload: str, seconds: float, *, at: float) -> None:
        cost = RestartCost(workload=workload, seconds=min(RESTART_SECONDS_MAX, max(0.0, seconds)), at=at)
        before = self._unsaved.get(workload)
        if before is not None:
            newer = max(before, cost, key=attrgetter("at"))
            cost = structs.replace(newer, measured=before.measured + 1)
        self._unsaved[workload] = cost
        self._unsaved = _newest(self._unsaved)
        self.recall([cost])

    def due(self, now: float) -> bool:
        """True if the last plan is old enough for a new one."""
        return self._plans.mode is not TuningMode.OFF and now >= self._planned_at + self._plans.seconds

    def plan(
        self,
        *,
        holding: Sequence[Job],
        queued: Sequence[Job],
        nodes: Sequence[Node],
        curves: Mapping[str, Curve],
        now: float,
        under_trial: Container[str] = (),
        scores: Sequence[GpuScore] = (),
        quotas: Sequence[Quota] = (),
        penalties: Mapping[str, float] | None = None,
    ) -> PlannedSizes:
        """The sizes of all jobs, for the present jobs and nodes. `curves`: by subject, of jobs and of workloads;
        `under_trial`: jobs that the tuner tries a change of, which keep their size. `scores`: scores of the GPUs; those
        for the most sensitive class count, as it loses most on a slow GPU. `quotas`: a job's fair share is a part of
        its tenant's, and no job grows beyond its tenant's limit. `penalties`: measured factors on the time of gangs
        across nodes, by workload."""
        self._planned_at = now
        open_jobs = [*holding, *sorted(queued, key=lambda job: job.seq)]
        binned = _binned(nodes, scores)
        shown = Locality(across_nodes=1.0, by_workload=penalties or {})  # a new workload may use idle GPUs
        kinds = Kinds(nodes, curves, open_jobs, shown)
        jobs = _planned_jobs(open_jobs, nodes, kinds)
        elastic = [self._elastic(job, now, under_trial, binned, kinds) for job in jobs.values()]
        under = _UnderQuotas(quotas, nodes, holding)
        elastic = under.weighed(elastic, jobs)
        servers = _servers(nodes, holding, jobs, binned)
        services = [job for job in open_jobs if job.spec.is_service]
        servers = without(servers, [each for job in services for each in _to_come(job)])
        partition = self._planner(elastic, servers, self._plans.rules)
        return _planned(partition, jobs, _lent(services), under, kinds.chosen(elastic, jobs, partition))

    def _elastic(
        self,
        job: Job,
        now: float,
        under_trial: Container[str],
        binned: Mapping[GpuKey, float],
        kinds: Kinds,
    ) -> ElasticJob:
        name, role = elastic_role(job)
        ranks = [allocation for allocation in job.held if allocation.role == name and not allocation.leaving]
        beside = [allocation for allocation in job.held if allocation.role != name]
        restart_s = self.restart_cost(job)
        if not job.state.holding:
            others = {other: each for other, each in job.spec.roles.items() if other != name}
            amounts = _sum(_times(_asked(each), job.wanted[other]) for other, each in others.items())
        else:
            amounts = _sum(map(_held, beside))
        sized = ElasticJob(
            job_id=job.id,
            each=_asked(role),
            least=role.replicas.least,
            most=role.replicas.most,
            speeds=kinds.speeds(job, name, here=most_of(ranks, kinds.of_nodes)),
            beside=amounts,
            restart_s=restart_s,
            fixed=job.state.holding and (job.id in under_trial or not _may_change(job)),
            cools=job.state.holding and self._cools(job, restart_s, now),
            waited_s=0.0 if job.state.holding else max(0.0, now - job.since),
        )
        return placed(sized, ranks, binned, kinds.of_nodes)

    def _cools(self, job: Job, restart_s: float, now: float) -> bool:
        since = job.held_since if job.sized_at is None else job.sized_at
        return not is_cool(since, now, restart_s=restart_s, seconds=self._plans.cool_down_seconds)


def _may_change(job: Job) -> bool:
    """Return True if all ranks of the job run, and it can change its size."""
    settled = job.state is JobState.RUNNING and not any(allocation.leaving for allocation in job.held)
    return settled and how_resized(job.spec) is not ResizeHow.NEVER


def _newest(costs: dict[str, RestartCost]) -> dict[str, RestartCost]:
    """The newest costs, up to the kept number."""
    if len(costs) <= RESTARTS_KEPT:
        return costs
    newest = sorted(costs.values(), key=lambda cost: (-cost.at, cost.workload))[:RESTARTS_KEPT]
    return {cost.workload: cost for cost in newest}


class _UnderQuotas:
    """Bounds of sizes by quotas; none without quotas."""

    def __init__(self, quotas: Sequence[Quota], nodes: Sequence[Node], holding: Sequence[Job]) -> None:
        self._ledger = ledger_of(quotas, {node.id: node for node in nodes}, holding if quotas else ())
        self._millis = float(WHOLE * sum(len(node.capacity.gpus) for node in nodes))

    def weighed(self, elastic: Sequence[ElasticJob], jobs: Mapping[str, Job]) -> list[ElasticJob]:
        """Each job weighted by its part of its tenant's fair share, 1 on average."""
        if not self._ledger.tree or not elastic:
            return list(elastic)
        of_tenant = Counter(jobs[one.job_id].tenant for one in elastic)
        due = due_of(self._ledger.tree, of_tenant, self._millis)
        average = sum(due.values()) / len(elastic)
        parts = {tenant: due[tenant] / count / average for tenant, count in of_tenant.items()}
        return [structs.replace(one, weight=parts[jobs[one.job_id].tenant]) for one in elastic]

    def allowed(self, job: Job, role: str, count: int) -> int:
        """The largest number of replicas up to `count` that quotas allow the job; they are then taken."""
        has = job.granted[role] if job.state.holding else 0
        each = int(_asked(job.spec.roles[role])[0] * WHOLE)
        if not self._ledger.tree or count <= has or not each:
            return count
        left = left_to(self._ledger, job.tenant, model=job.spec.only_model, preemptible=job.spec.preemptible)
        count = min(count, has + left // each)
        amounts = dict.fromkeys((ALL, job.spec.only_model or ALL), (count - has) * each)
        more = TenantHolds(job.tenant, amounts, 0.0, job.spec.preemptible)
        self._ledger.hold(f"{job.id} {role}", more)
        return count


def _lent(services: Iterable[Job]) -> Counter[str]:
    """Number of ranks lent to services, by job."""
    lent: Counter[str] = Counter()
    for job in services:
        for loan in job.loans:
            lent[loan.lender] += loan.ranks
    return lent


def _planned(
    partition: Partition,
    jobs: Mapping[str, Job],
    lent: Mapping[str, int],
    under: "_UnderQuotas",
    chosen: Mapping[str, str],
) -> PlannedSizes:
    """The new sizes, within quotas. Lent ranks stay a part of the size of a job, unless it should give up more;
    otherwise it would not get them back. A job that gives up nothing may grow into capacity that becomes free, unless
    the plan gives that to another job. `chosen`: by job, the model on which it should run from now on, if it is a new
    one."""
    sizes: dict[str, Scale] = {}
    findings: list[Finding] = []
    changes = {change.job_id: change for change in partition.changes}
    growing = {job_id for job_id, count in partition.sizes.items() if count > _has(jobs[job_id])}
    for job_id, count in partition.sizes.items():
        job = jobs[job_id]
        name, _ = elastic_role(job)
        gives_nothing = job.state.holding and _has(job) <= count < job.wanted[name] and not lent.get(job_id)
        model = chosen.get(job_id, "")
        if gives_nothing and growing <= {job_id} and not model:
            continue
        if count == 0 or how_resized(job.spec) is ResizeHow.NEVER:
            continue  # such a job never changes its first size, and the scheduler starts as much as fits
        if job.state.holding and job.granted[name] <= count < job.wanted[name]:
            count = min(job.wanted[name], count + lent.get(job_id, 0))
        count = max(under.allowed(job, name, count), job.spec.roles[name].replicas.least)
        if count == job.wanted[name] and not model:
            continue
        cause = _why(job, name, count, changes.get(job_id), model)
        sizes[job_id] = Scale(
            size={name: count}, gpu_model=model, epoch=job.epoch, instead_of={name: job.wanted[name]}, cause=cause
        )
        findings.append(
            Finding(code="partition", job_id=job_id, sentence=f"{job.name}: {cause.sentence}", numbers=cause.numbers)
        )
    return PlannedSizes(sizes=sizes, findings=tuple(findings))


def _has(job: Job) -> int:
    return job.granted[elastic_role(job)[0]] if job.state.holding else 0


def _why(job: Job, role: str, count: int, change: Change | None, model: str) -> Cause:
    size = f"{role} {count}" if count == job.wanted[role] else f"{role} {job.wanted[role]} → {count}"
    sentence = f"{size}{f' on GPUs of {model}' if model else ''}, by the partition planner"
    numbers = {"was": float(job.wanted[role]), "becomes": float(count)}
    if change is not None:
        numbers |= {"gain": round(change.gain, 4), "cost_seconds": change.cost_s}
        sentence += f": {change.gain:+.0%} of its speed at its fair share"
        if change.cost_s:
            sentence += f", for {duration_text(change.cost_s)} without progress"
        if change.gain < 0:
            sentence += "; other jobs gain more from the GPUs that it gives back"
    return Cause(code=CauseCode.PARTITIONED, sentence=sentence, numbers=numbers)


def _planned_jobs(open_jobs: Iterable[Job], nodes: Iterable[Node], kinds: Kinds) -> dict[str, Job]:
    """The jobs whose sizes the planner decides, by id, in the order in which the scheduler serves them.

    This loop is no part of `SizePlanner.plan`: there the last job would stay in a local variable, and `Aside` would
    leave that job out when the planner fails.
    """
    takes_jobs = {node.id for node in nodes if node.takes_any}
    planned = (
        job
        for job in open_jobs
        if not (job.spec.is_service or _stays_as_it_is(job, kinds) or is_benchmark(job.spec))
        and (not on_gpus(elastic_role(job)[1]) or kinds.suited(job))
        and not _chooses_nodes(job)  # the planner takes all servers as equal
        and all(allocation.node_id in takes_jobs for allocation in job.held)
    )
    return {job.id: job for job in islice(planned, JOBS_MAX)}


def _chooses_nodes(job: Job) -> bool:
    return bool(job.spec.named_volumes or job.spec.where or job.spec.tolerate)


def _stays_as_it_is(job: Job, kinds: Kinds) -> bool:
    """Return True for a running job of fixed size, unless it can restart on GPUs of another model."""
    _, role = elastic_role(job)
    if not job.state.holding or role.replicas.least < role.replicas.most:
        return False
    moves = how_resized(job.spec) is ResizeHow.RESTART and on_gpus(role) and len(kinds.suited(job)) > 1
    return not moves


def _servers(
    nodes: Iterable[Node], holding: Iterable[Job], planned: Container[str], binned: Mapping[GpuKey, float]
) -> list[Server]:
    """The nodes that take jobs, without capacity of jobs that are not `planned`, and without free GPUs that are out of
    use."""
    taken: dict[str, list[Amounts]] = {}
    of_others: set[GpuKey] = set()
    of_planned: set[GpuKey] = set()
    for job in holding:
        for allocation in job.held:
            gpus = of_planned if job.id in planned else of_others
            gpus.update((allocation.node_id, gpu) for gpu in allocation.gpus)
            if job.id not in planned:
                taken.setdefault(allocation.node_id, []).append(_held(allocation))
    servers: list[Server] = []
    for node in nodes:
        if node.takes_any:
            sick = {(node.id, gpu) for gpu in node.closed_gpus} - of_others - of_planned
            gone = _sum([*taken.get(node.id, ()), (float(len(sick)), 0.0, 0.0)])
            left = [gpu.index for gpu in node.capacity.gpus if (node.id, gpu.index) not in of_others | sick]
            servers.append(server_of(node, _less(amounts_of(node), gone), left, binned))
    return servers


def _to_come(job: Job) -> list[Amounts]:
    """The replicas that a service should get and does not have yet."""
    granted = job.granted
    return [
        _asked(role)
        for name, role in job.spec.roles.items()
        for _ in range(job.wanted[name] - (granted[name] if job.state.holding else 0))
    ]


def without(servers: Sequence[Server], replicas: Sequence[Amounts]) -> list[Server]:
    """The servers minus capacity for these replicas. Each replica goes to the server with the most GPUs left for it, on
    GPUs from which others gain least. Replicas that fit nowhere are ignored."""
    left = {server.id: server for server in servers}
    heap = [(-server.amounts[0], server.id) for server in servers]
    heapify(heap)
    for each in replicas:
        tried: list[tuple[float, str]] = []
        while heap:
            _, server_id = entry = heappop(heap)
            server = left[server_id]
            if all(has >= needs for has, needs in zip(server.amounts, each, strict=True)):
                server = left[server_id] = structs.replace(
                    server, amounts=_less(server.amounts, each), bins=_slowest_gone(server.bins, ceil(each[0]))
                )
                heappush(heap, (-server.amounts[0], server_id))
                break
            tried.append(entry)
            if -entry[0] < each[0]:
                break  # no other has more GPUs
        for entry in tried:
            heappush(heap, entry)
    return [left[server.id] for server in servers]


def _slowest_gone(bins: tuple[tuple[float, int], ...], gpus: int) -> tuple[tuple[float, int], ...]:
    found: list[tuple[float, int]] = []
    for score, count in reversed(bins):
        taken = min(count, gpus)
        gpus -= taken
        if count > taken:
            found.append((score, count - taken))
    return tuple(reversed(found))


def _binned(nodes: Iterable[Node], scores: Iterable[GpuScore]) -> Mapping[GpuKey, float]:
    """The bin of every GPU for the most sensitive class; empty if none is known."""
    believed = {(one.node_id, one.gpu_index): one.believed for one in scores if one.job_class == JOB_CLASSES[0]}
    if not believed:
        return {}
    gpus = [(node.id, gpu.index) for node in nodes for gpu in node.capacity.gpus]
    return Scores({JOB_CLASSES[0]: believed}).binned(JOB_CLASSES[0], gpus)


def _asked(role: Role) -> Amounts:
    gpus = role.gpus if role.share is None else role.share.request
    return (float(gpus), role.cpus, float(role.memory_bytes))


def _held(allocation: Allocation) -> Amounts:
    return (float(gpus_held(allocation.gpus, allocation.share)), allocation.cpus, float(allocation.memory))


def _times(amounts: Amounts, count: int) -> Amounts:
    return (amounts[0] * count, amounts[1] * count, amounts[2] * count)


def _sum(many: Iterable[Amounts]) -> Amounts:
    total = NOTHING
    for amounts in many:
        total = (total[0] + amounts[0], total[1] + amounts[1], total[2] + amounts[2])
    return total


def _less(amounts: Amounts, taken: Amounts) -> Amounts:
    return (max(0.0, amounts[0] - taken[0]), max(0.0, amounts[1] - taken[1]), max(0.0, amounts[2] - taken[2]))
