"""What would let a waiting job start sooner: each change tried out on the real room, in a scope that is undone."""

from collections.abc import Iterator
from math import ceil, inf

from msgspec import Struct, structs

from libs.domain.job import Job, JobState
from libs.domain.quantity import count_text, duration_text, size_text
from libs.messages.eta import Basis, Estimate, EtaOf, Helps, Sooner
from libs.planning.eta.starts import TICK_S, PoolToCome
from libs.planning.order.priority import PRIORITY
from libs.planning.preemption import Holder, clearing_for
from libs.planning.shape import Shape, Want, gpus_least, is_pinned, shape_of_job, smallest

LOOKS = 200  # decisions that each change may cost
TRIES_MAX = 4  # changes of one kind that are tried
WORTH = 0.2  # the part of the wait that a change must save to be told
WORTH_S = 2.0  # and the seconds
PRIORITY_MAX = 1000
MODELS_MAX = 4


class _Change(Struct, frozen=True, kw_only=True):
    """`words` begin the sentence."""

    what: Helps
    words: str
    change: dict[str, str | float]
    shape: Shape | None = None
    priority: int | None = None
    opens: str = ""


def sooner(pool: PoolToCome, job: Job, base: Estimate) -> tuple[Sooner, ...]:
    """Of each kind of change the best, or rather the smallest that lets it start at once; only those that help."""
    if job.state is not JobState.QUEUED or _when(base, pool.now) <= TICK_S:
        return ()
    plain = _when(pool.tried(pool.waiting(job), looks=LOOKS), pool.now)  # with as little work as each change
    found: list[Sooner] = []
    for changes in (
        _fewer_gpus(job),
        _another_model(pool, job),
        _spanning(job),
        _less_memory(job),
        _priority(pool, job),
    ):
        found += _best(pool, job, base, plain, changes)
    found += _best(pool, job, base, plain, _resumed(pool))
    return tuple(sorted(found, key=lambda one: inf if one.eta is None else _when(one.eta, pool.now)))


def _best(pool: PoolToCome, job: Job, base: Estimate, plain: float, changes: Iterator[_Change]) -> list[Sooner]:
    best: tuple[float, Sooner] | None = None
    for _, change in zip(range(TRIES_MAX), changes, strict=False):
        eta = _tried(pool, job, change)
        after = _when(eta, pool.now)
        if after < _when(base, pool.now) and (best is None or _is_worth(after, best[0])):
            told = Sooner(
                what=change.what, sentence=_sentence(change, eta, base, pool.now), change=change.change, eta=eta
            )
            best = (after, told)
        if after <= TICK_S:
            break
    if best is None or not _is_worth(best[0], min(plain, _when(base, pool.now))):
        return []
    return [best[1]]


def _is_worth(after: float, before: float) -> bool:
    return before == inf or before - after >= max(WORTH_S, WORTH * before)


def _tried(pool: PoolToCome, job: Job, change: _Change) -> Estimate:
    one = pool.waiting(job, shape=change.shape, priority=change.priority)
    with pool.room.supposing():
        if change.opens:
            pool.room.reopen([change.opens])
        eta = pool.tried(one, looks=LOOKS)
    if change.priority is not None and (cleared := _cleared(pool, job, change.priority)) is not None:
        eta = min(cleared, eta, key=lambda one: _when(one, pool.now))
    return eta


def _when(eta: Estimate, now: float) -> float:
    """Seconds from now, as the likely start, else the latest."""
    moment = eta.likely if eta.likely is not None else eta.latest
    return inf if moment is None else max(0.0, moment - now)


def _sentence(change: _Change, eta: Estimate, base: Estimate, now: float) -> str:
    after, before = _when(eta, now), _when(base, now)
    starts = "now" if after <= TICK_S else _in(after, eta)
    than = "; as it is, nobody can tell" if before == inf else f", not {_in(before, base)}"
    gives_way = f": {eta.sentence}" if change.what is Helps.PRIORITY and eta.basis is Basis.LIMITS else ""
    return f"{change.words}, it would start {starts}{than}{gives_way}"


def _in(seconds: float, eta: Estimate) -> str:
    if eta.likely is None:
        return f"in {duration_text(seconds)} at the latest"
    return f"in about {duration_text(seconds)}"


def _fewer_gpus(job: Job) -> Iterator[_Change]:
    """Half as many GPUs, a quarter, …: fewer replicas where there are several, else fewer GPUs of its one replica."""
    shape = smallest(shape_of_job(job))
    if is_pinned(shape) or len(shape) != 1 or shape[0].request.share is not None or not shape[0].request.gpus:
        return
    want, all_gpus = shape[0], gpus_least(shape)
    by_replica = want.least > 1
    count = want.least if by_replica else want.request.gpus
    while (count := count // 2) >= 1:
        smaller = _replicas(want, count) if by_replica else (_with(want, gpus=count),)
        gpus = gpus_least(smaller)
        change: dict[str, str | float] = {"gpus": gpus, "role": want.role}
        change["replicas" if by_replica else "gpus_per_replica"] = count
        words = f"with {count_text(int(gpus), 'GPU')} in place of {all_gpus:g}"
        yield _Change(what=Helps.FEWER_GPUS, words=words, change=change, shape=smaller)


def _another_model(pool: PoolToCome, job: Job) -> Iterator[_Change]:
    asked = job.spec.gpu_model
    shape = shape_of_job(job)
    if asked is None or is_pinned(shape):
        return
    models = {gpu.model for node in pool.nodes if node.ready and not node.drained for gpu in node.capacity.gpus}
    for model in sorted(models - {asked})[:MODELS_MAX]:
        other = tuple(_with(want, model=model) if want.request.model else want for want in shape)
        words = f"with GPUs of {model} in place of {asked}"
        yield _Change(what=Helps.ANOTHER_MODEL, words=words, change={"gpu_model": model}, shape=other)


def _spanning(job: Job) -> Iterator[_Change]:
    """Its one replica as several smaller ones, which may be on several nodes."""
    shape = smallest(shape_of_job(job))
    if is_pinned(shape) or len(shape) != 1 or shape[0].least != 1 or shape[0].request.gpus < 2:
        return
    want, gpus = shape[0], shape[0].request.gpus
    parts = 2
    while parts <= gpus:
        if gpus % parts == 0:
            request = want.request
            cpus, memory = request.cpus / parts, ceil(request.memory / parts)
            split = (
                Want(want.role, parts, parts, structs.replace(request, gpus=gpus // parts, cpus=cpus, memory=memory)),
            )
            words = f"as {parts} replicas of {count_text(gpus // parts, 'GPU')}, which may be on several nodes"
            change: dict[str, str | float] = {
                "role": want.role,
                "replicas": parts,
                "gpus_per_replica": gpus // parts,
                "cpus": cpus,
                "memory": memory,
            }
            yield _Change(what=Helps.SPANNING, words=words, change=change, shape=split)
        parts *= 2


def _less_memory(job: Job) -> Iterator[_Change]:
    shape = shape_of_job(job)
    if is_pinned(shape):
        return
    largest = max(want.request.memory for want in shape)
    for part in (0.75, 0.5, 0.25):
        less = tuple(_with(want, memory=max(1, int(want.request.memory * part))) for want in shape)
        memory = max(want.request.memory for want in less)
        words = f"with {size_text(memory)} of memory a replica in place of {size_text(largest)}"
        yield _Change(what=Helps.LESS_MEMORY, words=words, change={"memory": memory}, shape=less)


def _priority(pool: PoolToCome, job: Job) -> Iterator[_Change]:
    """Just above the jobs that are ahead of it, or that could give way."""
    if pool.policy.ordering.name != PRIORITY.name:
        return
    above = {one.priority for one in (*pool.queued, *pool.holding) if one.id != job.id and not one.spec.is_service}
    wanted = sorted(priority + 1 for priority in above if job.priority <= priority < PRIORITY_MAX)
    if job.priority < PRIORITY_MAX:
        wanted = wanted or [job.priority + 1]
    for priority in dict.fromkeys((*wanted[:1], *wanted[-1:])):
        words = f"with priority {priority} in place of {job.priority}"
        yield _Change(what=Helps.PRIORITY, words=words, change={"priority": priority}, priority=priority)


def _cleared(pool: PoolToCome, job: Job, priority: int) -> Estimate | None:
    """When it starts if running jobs of lower priority give way to it; None: they would not suffice, or its quota
    holds it back."""
    quotas = pool.quotas
    if not quotas.may_start(job.tenant, shape_of_job(job), preemptible=job.spec.preemptible):
        return None
    holders = [
        Holder(job_id=held.id, worth=(float(held.priority), -float(held.seq)), allocations=held.held)
        for held in pool.holding
        if held.spec.preemptible and held.priority < priority and not held.spec.is_service
        if not quotas.protects(job.tenant, held.id)
    ]
    if not holders:
        return None
    clearing = clearing_for(smallest(shape_of_job(job)), room=pool.room, holders=holders)
    if clearing is None or not clearing.victims:
        return None
    victims = {victim.job_id for victim in clearing.victims}
    grace = max((held.spec.grace_seconds for held in pool.holding if held.id in victims), default=0.0)
    gives = "1 job of lower priority gives" if len(victims) == 1 else f"{len(victims)} jobs of lower priority give"
    sentence = f"{gives} way, within {duration_text(grace)}"
    return Estimate(
        of=EtaOf.START,
        basis=Basis.LIMITS,
        sentence=sentence,
        earliest=pool.now,
        likely=pool.now + grace / 2,
        latest=pool.now + grace,
    )


def _resumed(pool: PoolToCome) -> Iterator[_Change]:
    """Drained nodes, the largest first."""
    drained = sorted(
        (node for node in pool.nodes if node.drained and node.ready),
        key=lambda node: (-len(node.capacity.gpus), node.id),
    )
    for node in drained:
        words = f"if {node.id}, which is drained, took work again (`weft resume {node.id}`)"
        yield _Change(what=Helps.RESUME_NODE, words=words, change={"node": node.id}, opens=node.id)


def _with(want: Want, *, gpus: int | None = None, model: str | None = None, memory: int | None = None) -> Want:
    request = want.request
    other = structs.replace(
        request,
        gpus=request.gpus if gpus is None else gpus,
        model=request.model if model is None else model,
        memory=request.memory if memory is None else memory,
    )
    return structs.replace(want, request=other)


def _replicas(want: Want, count: int) -> Shape:
    return (structs.replace(want, least=count, count=count),)
