"""Suggestions for an earlier start: each change is tried on the real capacity, in a scope that is undone."""

from collections.abc import Callable, Iterator
from math import ceil, inf
from operator import itemgetter

from msgspec import Struct, structs

from weft.domain.job import Job, JobState
from weft.domain.quantity import duration_text, size_text
from weft.domain.text import listed, plural
from weft.messages.eta import Basis, Estimate, Helps, Sooner
from weft.planning.eta.starts import QUEUE_MAX, SOON_S, TICK_S, Foreseen, PoolToCome, waits_unseen
from weft.planning.order import PRIORITY
from weft.planning.resource_request import (
    ResourceRequest,
    RoleRequest,
    gpus_least,
    is_pinned,
    resource_request_of_job,
    smallest,
)

LOOKS = 200  # decisions that each change may use
TRIES_MAX = 4  # changes of one kind that are tried
WORTH = 0.2  # the fraction of the wait that a change must save to be suggested
WORTH_S = 2.0  # and the seconds
PRIORITY_MAX = 1000
MODELS_MAX = 4
NAMED_MAX = 3  # jobs that a higher priority would stop


class _Change(Struct, frozen=True, kw_only=True):
    """A change to try. `words`: the begin of its sentence."""

    what: Helps
    words: str
    change: dict[str, str | float]
    resource_request: ResourceRequest | None = None
    priority: int | None = None
    opens: str = ""


class Advised(Struct, frozen=True):
    """The advised person: the highest priority that they may request, and what they may know about other jobs."""

    priority_max: int = PRIORITY_MAX
    named: Callable[[Job], str] = lambda job: job.name


ANYBODY = Advised()


def sooner(pool: PoolToCome, job: Job, base: Foreseen, advised: Advised = ANYBODY) -> tuple[Sooner, ...]:
    """The best change of each kind that helps, or the smallest one that lets the job start at once. No change helps a
    job that waits for other jobs, or for things that only the scheduler sees."""
    if (
        job.state is not JobState.QUEUED
        or job.is_held
        or waits_unseen(job)
        or not pool.sees_all
        or _is_now(base.estimate, pool.now)
    ):
        return ()
    plain = _when(pool.seen(pool.waiting(job), LOOKS), pool.now)  # with as little work as each change
    found: list[tuple[float, Sooner]] = []
    for changes in (
        _fewer_gpus(job),
        _another_model(pool, job),
        _spanning(job),
        _less_memory(job),
        _priority(pool, job, advised),
    ):
        found += _best(pool, job, base, plain, changes, advised)
    found += _best(pool, job, base, plain, _resumed(pool), advised)
    return tuple(one for _, one in sorted(found, key=itemgetter(0)))


def _best(
    pool: PoolToCome, job: Job, base: Foreseen, plain: float, changes: Iterator[_Change], advised: Advised
) -> list[tuple[float, Sooner]]:
    best: tuple[float, Sooner] | None = None
    for _, change in zip(range(TRIES_MAX), changes, strict=False):
        seen = _tried(pool, job, change, advised)
        after, eta = _when(seen, pool.now), seen.estimate
        if after < _when(base, pool.now) and (best is None or _is_worth(after, best[0])):
            first = not _is_behind(pool, job, change)
            sentence = _sentence(change, eta, base.estimate, pool.now, first=first)
            best = (after, Sooner(what=change.what, sentence=sentence, change=change.change, eta=eta))
        if _is_now(eta, pool.now):
            break
    if best is None or not _is_worth(best[0], min(plain, _when(base, pool.now))):
        return []
    return [best]


def _is_worth(after: float, before: float) -> bool:
    return before == inf or before - after >= max(WORTH_S, WORTH * before)


def _tried(pool: PoolToCome, job: Job, change: _Change, advised: Advised) -> Foreseen:
    if change.opens:
        pool = pool.with_resumed(change.opens)
    seen = pool.seen(pool.waiting(job, resource_request=change.resource_request, priority=change.priority), LOOKS)
    if seen.stops is None or seen.estimate.basis is not Basis.LIMITS:
        return seen
    stopped = sorted((held for held in pool.holding if held.id in seen.stops.jobs), key=lambda held: held.seq)
    names = listed([advised.named(held) for held in stopped], NAMED_MAX)
    sentence = f"{names} would be stopped for it, within {duration_text(seen.stops.at_s + seen.stops.within_s)}"
    return structs.replace(seen, estimate=structs.replace(seen.estimate, sentence=sentence))


def _when(seen: Foreseen, now: float) -> float:
    """Seconds until the likely start, even if it is too uncertain to show, else until the latest."""
    eta = seen.estimate
    if eta.basis is Basis.UNKNOWN:
        return inf
    if seen.told is not None:
        return seen.told.likely if eta.basis is not Basis.LIMITS or seen.stops else seen.told.high
    moment = eta.likely if eta.likely is not None else eta.latest
    return inf if moment is None else max(0.0, moment - now)


def _is_now(eta: Estimate, now: float) -> bool:
    """True if it fits in the next cycle, and not only by a guess."""
    return eta.basis is Basis.ROOM and eta.latest is not None and eta.latest <= now + TICK_S


def _is_behind(pool: PoolToCome, job: Job, change: _Change) -> bool:
    """True if another job may be served before it; then it may fit without a start."""
    one = pool.waiting(job, resource_request=change.resource_request, priority=change.priority)
    others = [other for other in pool.queued if other.id != job.id and not other.is_held]
    if pool.quotas.on or pool.policy.ordering.by_share:
        return bool(others)
    return any(pool.waiting(other).place < one.place for other in others[:QUEUE_MAX]) or len(others) > QUEUE_MAX


def _sentence(change: _Change, eta: Estimate, base: Estimate, now: float, *, first: bool) -> str:
    if _is_now(eta, now) and not first:
        return f"{change.words}, it would fit now; jobs ahead of it may still come first"
    starts = "now" if _is_now(eta, now) else _in(eta, now)
    before = _in(base, now)
    than = f", not {before}" if before else "; without that, nobody can tell"
    gives_way = f": {eta.sentence}" if change.what is Helps.PRIORITY and eta.basis is Basis.LIMITS else ""
    return f"{change.words}, it would start {starts}{than}{gives_way}"


def _in(eta: Estimate, now: float) -> str:
    """The time or range to show; empty if unknown."""
    earliest, likely, latest = (
        "" if one is None else duration_text(max(0.0, one - now)) for one in (eta.earliest, eta.likely, eta.latest)
    )
    if eta.likely is not None:
        return f"in about {likely}"
    if eta.latest is not None and eta.basis is Basis.LIMITS:
        return f"in {latest} at the latest"
    if eta.latest is not None and (eta.earliest is None or eta.earliest - now < SOON_S):
        return f"within {latest}"
    if eta.latest is not None:
        return f"in {earliest} to {latest}"
    return f"before {earliest}" if eta.earliest is not None and eta.earliest - now >= SOON_S else ""


def _fewer_gpus(job: Job) -> Iterator[_Change]:
    """Half as many GPUs, a quarter, …: fewer replicas if there are several, else fewer GPUs for its one replica."""
    resource_request = smallest(resource_request_of_job(job))
    if (
        is_pinned(resource_request)
        or len(resource_request) != 1
        or resource_request[0].request.share is not None
        or not resource_request[0].request.gpus
    ):
        return
    want, all_gpus = resource_request[0], gpus_least(resource_request)
    by_replica = want.least > 1
    count = want.least if by_replica else want.request.gpus
    while (count := count // 2) >= 1:
        smaller = _replicas(want, count) if by_replica else (_with(want, gpus=count),)
        gpus = gpus_least(smaller)
        change: dict[str, str | float] = {"gpus": gpus, "role": want.role}
        change["replicas" if by_replica else "gpus_per_replica"] = count
        words = f"with {plural(int(gpus), 'GPU')} in place of {all_gpus:g}"
        yield _Change(what=Helps.FEWER_GPUS, words=words, change=change, resource_request=smaller)


def _another_model(pool: PoolToCome, job: Job) -> Iterator[_Change]:
    asked, memory = job.spec.gpu_models, job.spec.gpu_memory_bytes
    resource_request = resource_request_of_job(job)
    if not asked or is_pinned(resource_request):
        return
    gpus = [gpu for node in pool.nodes if node.takes_work for gpu in node.capacity.gpus]
    models = {gpu.model for gpu in gpus if gpu.memory >= memory}
    for model in sorted(models - {*asked})[:MODELS_MAX]:
        other = tuple(_with(want, model=model) if want.request.models else want for want in resource_request)
        words = f"with GPUs of {model} in place of {' or '.join(asked)}"
        yield _Change(what=Helps.ANOTHER_MODEL, words=words, change={"gpu_model": model}, resource_request=other)


def _spanning(job: Job) -> Iterator[_Change]:
    """Suggest splitting the single replica into smaller ones that can run on several nodes."""
    resource_request = smallest(resource_request_of_job(job))
    if (
        is_pinned(resource_request)
        or len(resource_request) != 1
        or resource_request[0].least != 1
        or resource_request[0].request.gpus < 2
    ):
        return
    want, gpus = resource_request[0], resource_request[0].request.gpus
    parts = 2
    while parts <= gpus:
        if gpus % parts == 0:
            request = want.request
            cpus, memory = request.cpus / parts, ceil(request.memory / parts)
            split = (
                RoleRequest(
                    want.role, parts, parts, structs.replace(request, gpus=gpus // parts, cpus=cpus, memory=memory)
                ),
            )
            words = f"as {plural(parts, 'replica')} of {plural(gpus // parts, 'GPU')}, which may be on several nodes"
            change: dict[str, str | float] = {
                "role": want.role,
                "replicas": parts,
                "gpus_per_replica": gpus // parts,
                "cpus": cpus,
                "memory": memory,
            }
            yield _Change(what=Helps.SPANNING, words=words, change=change, resource_request=split)
        parts *= 2


def _less_memory(job: Job) -> Iterator[_Change]:
    resource_request = resource_request_of_job(job)
    if is_pinned(resource_request):
        return
    largest = max(want.request.memory for want in resource_request)
    for part in (0.75, 0.5, 0.25):
        less = tuple(_with(want, memory=max(1, int(want.request.memory * part))) for want in resource_request)
        memory = max(want.request.memory for want in less)
        words = f"with {size_text(memory)} of memory a replica in place of {size_text(largest)}"
        yield _Change(what=Helps.LESS_MEMORY, words=words, change={"memory": memory}, resource_request=less)


def _priority(pool: PoolToCome, job: Job, advised: Advised) -> Iterator[_Change]:
    """A priority just above the jobs ahead of it, or those that could give way; at most what its user may request."""
    if pool.policy.ordering.name != PRIORITY.name:
        return
    above = {one.priority for one in (*pool.queued, *pool.holding) if one.id != job.id and not one.spec.is_service}
    wanted = sorted(priority + 1 for priority in above if job.priority <= priority < PRIORITY_MAX)
    if job.priority < PRIORITY_MAX:
        wanted = wanted or [job.priority + 1]
    wanted = [priority for priority in wanted if priority <= advised.priority_max]
    for priority in dict.fromkeys((*wanted[:1], *wanted[-1:])):
        words = f"with priority {priority} in place of {job.priority}"
        yield _Change(what=Helps.PRIORITY, words=words, change={"priority": priority}, priority=priority)


def _resumed(pool: PoolToCome) -> Iterator[_Change]:
    """Drained nodes, the largest first."""
    drained = sorted(
        (node for node in pool.nodes if node.drained and node.ready),
        key=lambda node: (-len(node.capacity.gpus), node.id),
    )
    for node in drained:
        words = f"if {node.id}, which is drained, took work again (`weft resume {node.id}`)"
        yield _Change(what=Helps.RESUME_NODE, words=words, change={"node": node.id}, opens=node.id)


def _with(
    want: RoleRequest, *, gpus: int | None = None, model: str | None = None, memory: int | None = None
) -> RoleRequest:
    request = want.request
    other = structs.replace(
        request,
        gpus=request.gpus if gpus is None else gpus,
        models=request.models if model is None else (model,),
        memory=request.memory if memory is None else memory,
    )
    return structs.replace(want, request=other)


def _replicas(want: RoleRequest, count: int) -> ResourceRequest:
    return (structs.replace(want, least=count, count=count),)
