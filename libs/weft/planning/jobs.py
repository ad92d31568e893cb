"""Facts of a stored job for planning: its place in an order, its duration, its placement request."""

from collections.abc import Mapping

from msgspec import structs

from weft.domain.checkpoints import lost_seconds
from weft.domain.classes import NOTHING_LEARNT, class_of, workload_of
from weft.domain.failure import avoided
from weft.domain.job import Job, JobState
from weft.health.spares import spare_use
from weft.planning.order import Order, Standing
from weft.planning.resource_request import PlacementRequest, ResourceRequest, gpus_least, is_pinned, resource_request_of
from weft.planning.scheduling_pass import Demand
from weft.planning.tiers import has_lasted

WITH_OBJECTIVE, WITH_SLACK = 1.05, 1.5  # how slow a GPU may be before it costs a service something


def standing_of(job: Job, now: float, order: Order) -> Standing:
    """Where the job stands in an order. Only a time limit tells how long a job takes. It limits one try, so a job
    that waits for its next try has all of it left. A job that has waited so long that the order promotes it stands as
    if it had never run.
    """
    holds = job.state.holding
    held_s = max(0.0, now - job.held_since) if holds else 0.0
    limit = job.spec.time_limit_seconds
    standing = Standing(
        id=job.id,
        seq=job.seq,
        gpus=job.gpus_held if holds else gpus_least(resource_request_of(job.spec)),
        priority=job.priority,
        tenant=job.tenant,
        attained_s=job.attained_seconds + held_s,
        attained_gpu_s=job.gpu_seconds(now),
        waited_s=0.0 if holds else max(0.0, now - job.since),
        left_s=None if limit is None else max(0.0, limit - held_s),
        checkpoints=lost_seconds(job.spec) is not None,
    )
    if not is_promoted(standing, holds, order):
        return standing
    return promoted(standing)


def promoted(standing: Standing) -> Standing:
    """The standing as if the job had never run."""
    return structs.replace(standing, attained_s=0.0, attained_gpu_s=0.0, promoted=True)


def is_promoted(standing: Standing, holds: bool, order: Order) -> bool:
    after = None if holds else order.promotes_after_s(standing)
    return after is not None and has_lasted(-after, 0.0)


def wants_of(job: Job, resource_request: ResourceRequest, lasts_s: float | None) -> Demand:
    """The wants of a waiting job of this shape."""
    return Demand(
        resource_request,
        gpus_least(resource_request),
        lasts_s,
        pinned=is_pinned(resource_request),
        tenant=job.tenant,
        preemptible=job.spec.preemptible,
        model=job.spec.only_model,
        spare_use=spare_use(job),
        checkpoints=lost_seconds(job.spec) is not None,
    )


def ends_at(job: Job) -> float | None:
    """When a job gives back its GPUs at the latest: if it is stopping, after its drain and grace; else by its limit, if
    it has one."""
    limit = job.spec.time_limit_seconds
    if job.state is JobState.STOPPING:
        return job.since + job.spec.drain_seconds + job.spec.grace_seconds
    return None if limit is None else (job.started_at or job.since) + limit


def asked_by(job: Job, learnt: Mapping[str, str] = NOTHING_LEARNT) -> PlacementRequest:
    """The job's placement request. `learnt`: the learnt classes of workloads."""
    tolerates = None
    if job.spec.is_service:
        tolerates = WITH_SLACK if job.spec.objective is None else WITH_OBJECTIVE
    gpus = sum(role.gpus * max(role.replicas.want, role.replicas.most) for role in job.spec.roles.values())
    return PlacementRequest(
        class_of(job.spec, learnt),
        job.id,
        tolerates=tolerates,
        avoids=avoided(job.failures),
        workload=workload_of(job.spec) if gpus and tolerates is None else "",
    )
