"""A pool as it is now, from which a what-if begins, and the changes to it. Pure, and small enough to send to a
process."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, structs

from weft.domain.checkpoints import lost_seconds
from weft.domain.cluster import Drain, Node
from weft.domain.job import Allocation, CauseCode, Job, JobState
from weft.domain.quotas import Quota
from weft.domain.spec import JobSpec
from weft.planning.borrowing import why_never_lends
from weft.planning.growth import LiveSizes, live_sizes
from weft.planning.jobs import asked_by
from weft.planning.locality import Locality
from weft.planning.policy import BACKFILLS, ORDERS, PLACEMENTS, Policy
from weft.planning.preemption.minimum_run import SECONDS, MinimumRun
from weft.planning.resource_request import PlacementRequest, ResourceRequest, resource_request_of_job
from weft.planning.scores import GpuKey
from weft.simulator.whatif.durations import Assumptions
from weft.variability.models import ModelSpeeds

SUPPOSED = "supposed-"  # how the names of jobs and nodes begin that are not there
COMES_BACK = frozenset(
    {
        CauseCode.PREEMPTED,
        CauseCode.MOVED,
        CauseCode.LENT,
        CauseCode.PARTITIONED,
        CauseCode.SCALE_ASKED,
        CauseCode.REQUEUE_ASKED,
        CauseCode.NODE_LOST,
    }
)
"""Why a job is stopping that will wait again once it has stopped."""


class JobNow(Struct, frozen=True, kw_only=True):
    """A job that is not over, as far as its future depends on it. Times are seconds from now: what was is below 0.

    `held`: what it holds; nothing, if it waits. `left_s`: how long it will hold GPUs from now on, or once it has them;
    infinite for one that never ends. `limit_s`: its time limit; `gives_way`: whether it may be preempted.
    `checkpoint_s`: the time between two checkpoints, as `TraceJob` has it. `live`: between which sizes it goes live;
    `lends`: whether it gives up ranks that it can do without.
    """

    id: str
    tenant: str
    seq: int
    priority: int
    resource_request: ResourceRequest
    asked: PlacementRequest
    limit_s: float | None
    gives_way: bool
    checkpoint_s: float | None
    held: tuple[Allocation, ...]
    since_s: float
    not_before_s: float
    attained_s: float
    attained_gpu_s: float
    left_s: float
    live: LiveSizes = ()
    lends: bool = False


class Present(Struct, frozen=True, kw_only=True):
    """`jobs` are of one moment; `scores`: by class, how fast each GPU is believed to be; `quotas`: those in force.
    `minimum_run`: how long a job runs before it may be pre-empted; `locality`: what distance is believed to cost;
    `model_speeds`: how fast jobs are believed to be on each model of GPUs (None: equally fast)."""

    nodes: tuple[Node, ...]
    jobs: tuple[JobNow, ...]
    policy: Policy
    scores: Mapping[str, Mapping[GpuKey, float]] = {}
    quotas: tuple[Quota, ...] = ()
    minimum_run: MinimumRun = MinimumRun(SECONDS)
    locality: Locality = Locality()
    model_speeds: ModelSpeeds | None = None


class Supposition(Struct, frozen=True, kw_only=True):
    """What would be different. An empty name leaves that part of the policy as it is; `submit`: jobs that are not there
    yet."""

    order: str = ""
    placement: str = ""
    backfill: str = ""
    add_nodes: int = 0
    drain: tuple[str, ...] = ()
    submit: tuple[JobNow, ...] = ()

    def policy(self, now: Policy) -> Policy:
        return Policy(self.order or now.order, self.placement or now.placement, self.backfill or now.backfill)


def jobs_now(jobs: Iterable[Job], assumed: Assumptions, learnt: Mapping[str, str], *, at: float) -> tuple[JobNow, ...]:
    """Jobs that are not over, `at` seconds since 1970. Jobs of one shape share it, so that they are sent once."""
    resource_requests: dict[ResourceRequest, ResourceRequest] = {}
    found: list[JobNow] = []
    for job in jobs:
        resource_request = resource_request_of_job(job)
        again = structs.replace(job, state=JobState.QUEUED) if comes_back(job) else job
        found.append(
            _now(
                job,
                resource_requests.setdefault(resource_request, resource_request),
                assumed.left(again, at).seconds,
                learnt,
                at=at,
            )
        )
    return tuple(found)


def _now(job: Job, resource_request: ResourceRequest, left_s: float, learnt: Mapping[str, str], *, at: float) -> JobNow:
    holds = job.state.holding and not comes_back(job)
    so_far = max(0.0, at - job.held_since) if job.state.holding else 0.0
    return JobNow(
        id=job.id,
        tenant=job.tenant,
        seq=job.seq,
        priority=job.priority,
        resource_request=resource_request,
        asked=asked_by(job, learnt),
        limit_s=job.spec.time_limit_seconds,
        gives_way=job.spec.preemptible,
        checkpoint_s=None if (lost := lost_seconds(job.spec)) is None else 2 * lost,
        held=job.held if holds else (),
        since_s=min(0.0, (job.held_since if holds else job.since) - at),
        not_before_s=max(0.0, job.not_before - at),
        attained_s=job.attained_seconds + so_far,
        attained_gpu_s=job.gpu_seconds(at),
        left_s=left_s,
        live=live_sizes(job),
        lends=not why_never_lends(job),
    )


def supposed(present: Present, what: Supposition) -> Present:
    """The pool under the supposition. Raises ValueError, which begins with the name of the field, if it is
    impossible."""
    by_id = {node.id: node for node in present.nodes}
    unknown = [name for name in what.drain if name not in by_id]
    if unknown:
        raise ValueError(f"drain: there is no node {unknown[0]}")
    if what.add_nodes and not present.nodes:
        raise ValueError("add_nodes: there is no node yet that new ones could be like")
    nodes = [structs.replace(node, drain=Drain()) if node.id in what.drain else node for node in present.nodes]
    return structs.replace(
        present,
        nodes=(*nodes, *_like_most(present.nodes, what.add_nodes)),
        jobs=(*present.jobs, *what.submit),
        policy=what.policy(present.policy),
    )


def policy_of(text: str) -> Policy:
    """The current policy as its leader stored it. A part that this version does not know, or that was not stored, has
    its default."""
    order, _, rest = text.partition("+")
    placement, _, backfill = rest.partition("+")
    return Policy(
        order if order in ORDERS else "priority",
        placement if placement in PLACEMENTS else "weft-best",
        backfill if backfill in BACKFILLS else "easy",
    )


def job_of(spec: JobSpec, *, number: int, tenant: str, seq: int, at: float) -> Job:
    """A supposed job. No stored job can have its id."""
    return Job(
        id=f"{SUPPOSED}{number + 1}",
        tenant=tenant,
        spec=spec,
        seq=seq,
        submitted_at=at,
        since=at,
        priority=spec.priority,
    )


def comes_back(job: Job) -> bool:
    """True if a job that holds GPUs is stopping, and waits again then."""
    why = job.stopping_for
    return job.state is JobState.STOPPING and why is not None and why.code in COMES_BACK


def _like_most(nodes: Sequence[Node], count: int) -> list[Node]:
    """New nodes of the most frequent kind; of equally frequent kinds, that of the node with the first id."""
    kinds: dict[tuple[object, ...], list[Node]] = {}
    for node in sorted(nodes, key=lambda node: node.id):
        models = tuple(gpu.model for gpu in node.capacity.gpus)
        kinds.setdefault((models, node.capacity.cpus, node.capacity.memory), []).append(node)
    alike = max(kinds.values(), key=len, default=[])
    return [
        structs.replace(alike[0], id=f"{SUPPOSED}node-{number + 1}", ready=True, drain=None) for number in range(count)
    ]
