"""Random histories of a cluster: jobs arrive, fail, resize live, move, and choose among models of GPUs; services are
scaled and updated."""

from collections.abc import Mapping, Sequence
from random import Random

from msgspec import Struct, structs

from weft.domain.classes import JOB_CLASSES
from weft.domain.labels.where import matches
from weft.domain.quotas import ALL, Quota
from weft.domain.shares import WHOLE
from weft.planning.moves import MoveRules
from weft.planning.policy import BACKFILLS, ORDERS, Policy
from weft.simulator.model import Cluster, NodeGroup
from weft.simulator.workload import Ask, Elastic, ServiceSize, TraceJob
from weft.variability.models import ModelRatio, WorkloadRatios

MODELS = ("M1", "M2", "M3")  # nothing is known of these but what a history says
WORKLOAD = "drawn"
STAY = MoveRules(on=False, cost_seconds=0.0)


class History(Struct, frozen=True, kw_only=True):
    jobs: tuple[TraceJob, ...]
    cluster: Cluster
    policy: Policy
    quotas: tuple[Quota, ...] = ()
    failures: tuple[tuple[float, str], ...] = ()  # when a job fails, if it runs then
    penalty: float = 1.0
    moves: MoveRules = STAY
    model_ratios: tuple[WorkloadRatios, ...] | None = None


def drawn(
    seed: int,
    *,
    elastic: bool = True,
    moves: bool = True,
    services: bool = True,
    groups: bool = True,
    models: bool = True,
) -> History:
    dice = Random(seed)
    cluster = Cluster(nodes=dice.randint(1, 5), gpus_per_node=dice.choice((1, 2, 4, 8)))
    policy = Policy(dice.choice(ORDERS), dice.choice(("packed-sticky", "spread")), dice.choice(BACKFILLS))
    hurry = dice.choice((5.0, 60.0, 400.0))
    jobs: list[TraceJob] = []
    at = 1000
    for number in range(dice.randint(4, 24)):
        at += round(dice.expovariate(1.0) * hurry)
        gpus = dice.randint(1, min(cluster.gpus, dice.choice((1, 2, 4, 40))))
        work = float(dice.choice((20, 300, 900, 2000, 9000)) + dice.randint(0, 50))
        checkpoints = dice.choice((None, None, 0.0, 600.0))
        limit = work * dice.choice((1, 2)) if checkpoints is None and dice.random() < 0.5 else None
        jobs.append(
            TraceJob(
                id=f"j-{number:03d}",
                arrival_s=float(at),
                gpus=gpus,
                work_s=work,
                checkpoint_s=checkpoints,
                tenant=dice.choice(("alice", "bob", "carol")),
                priority=dice.choice((0, 0, 0, 1, 2)),
                estimate_s=limit,
            )
        )
    quotas = _quotas(dice, jobs, cluster.gpus)
    rigid = History(jobs=tuple(jobs), cluster=cluster, policy=policy, quotas=quotas, failures=_failures(dice, jobs))
    history = _made_elastic(rigid, Random(-1 - seed)) if elastic else rigid
    history = _of_models(history, Random(f"models {seed}")) if models and seed % 5 == 0 else history
    history = _made_uneven(history, Random(f"uneven {seed}")) if moves and seed % 2 else history
    history = grouped(history, Random(f"groups {seed}")) if groups and seed % 3 == 0 else history
    return with_services(history, Random(f"services {seed}")) if services and seed % 4 == 0 else history


def grouped(history: History, dice: Random) -> History:
    """If there are quotas, their tenants belong to a group with a guarantee and a limit; all have weights."""
    if not history.quotas:
        return history
    gpus, members = history.cluster.gpus, [structs.replace(one, group="team") for one in history.quotas]
    guaranteed = dice.randint(0, gpus // 2)
    own = sum(one.guaranteed.get(ALL, 0) for one in members) // WHOLE
    least = max([1, guaranteed, own, *(job.gpus for job in history.jobs if job.tenant != "carol")])
    team = Quota(
        name="team",
        is_group=True,
        guaranteed={ALL: guaranteed * WHOLE} if guaranteed else {},
        limit={ALL: dice.randint(least, max(least, gpus)) * WHOLE} if dice.random() < 0.5 else {},
    )
    quotas = (*members, Quota(name="carol"), team)
    return structs.replace(
        history, quotas=tuple(structs.replace(one, weight=dice.choice((0, 1, 1, 3))) for one in quotas)
    )


def with_labels(history: History, dice: Random) -> History:
    """Nodes have labels, and some jobs choose among them; each job could start on the nodes that it chooses."""
    labels: tuple[dict[str, str], ...] = tuple(
        {"zone": dice.choice("ab"), **({"nvlink": ""} if dice.random() < 0.5 else {})}
        for _ in range(history.cluster.nodes)
    )
    expressions = ("zone == 'a'", "zone != 'a'", "nvlink", "!nvlink || zone in ['b', 'c']")
    room = {text: history.cluster.gpus_per_node * sum(matches(text, each) for each in labels) for text in expressions}

    def choosing(job: TraceJob) -> TraceJob:
        suited = [text for text in expressions if room[text] >= job.gpus]
        return structs.replace(job, where=dice.choice(suited)) if suited and dice.random() < 0.6 else job

    cluster = structs.replace(history.cluster, labels=labels)
    return structs.replace(history, cluster=cluster, jobs=tuple(map(choosing, history.jobs)))


def with_services(history: History, dice: Random) -> History:
    """Some services come beside the jobs: each is asked for other sizes and revisions, until it is cancelled."""
    found: list[TraceJob] = []
    for number in range(dice.randint(1, 3)):
        at = dice.choice(history.jobs).arrival_s + dice.choice((0.0, 7.0))
        lasts = dice.choice((100.0, 1000.0, 10000.0))
        want = dice.randint(1, 4)
        least = dice.randint(0, want)
        size = ServiceSize(
            want=want,
            least=least,
            max_surge=dice.choice((1, 1, 2)),
            asks=tuple(
                Ask(at_s=at + when, size=dice.choice((None, *range(max(1, least), want + 6))))
                for when in sorted(float(dice.randint(1, int(lasts))) for _ in range(dice.randint(0, 8)))
            ),
        )
        found.append(
            TraceJob(
                id=f"s-{number:03d}",
                arrival_s=at,
                gpus=dice.choice((1, 1, min(2, history.cluster.gpus_per_node))),
                work_s=lasts + 1,
                checkpoint_s=None,
                job_class=dice.choice(("compute", "memory")),
                tenant=dice.choice(("alice", "bob", "carol")),
                priority=dice.choice((0, 0, 1, 2)),
                service=size,
            )
        )
    return structs.replace(history, jobs=tuple(sorted((*history.jobs, *found), key=lambda job: job.arrival_s)))


def _of_models(history: History, dice: Random) -> History:
    """Nodes have GPUs of several models, which are not equally fast; some rigid jobs name models, or exclude one."""
    models = MODELS[: dice.choice((2, 3))]
    cluster = structs.replace(history.cluster, nodes=max(history.cluster.nodes, len(models)))
    ends = [0, *sorted(dice.sample(range(1, cluster.nodes), len(models) - 1)), cluster.nodes]
    groups = tuple(
        NodeGroup(nodes=end - begin, gpus_per_node=cluster.gpus_per_node, model=model)
        for model, begin, end in zip(models, ends, ends[1:], strict=False)
    )
    times = [dice.choice((0.5, 2.0)), *(dice.choice((0.5, 1.0, 2.0)) for _ in models[2:])]
    ratios = tuple(ModelRatio("", model, models[0], each) for model, each in zip(models[1:], times, strict=True))
    of_model = {group.model: group.nodes * group.gpus_per_node for group in groups}
    return structs.replace(
        history,
        jobs=tuple(_with_alternatives(job, of_model, dice) for job in history.jobs),
        cluster=structs.replace(cluster, groups=groups),
        model_ratios=(WorkloadRatios(workload=WORKLOAD, ratios=ratios),),
    )


def _with_alternatives(job: TraceJob, gpus_of: Mapping[str, int], dice: Random) -> TraceJob:
    """The models that the job names hold it, if need be together."""
    job = structs.replace(job, model=WORKLOAD, estimate_s=None)
    order = dice.sample(sorted(gpus_of), len(gpus_of))
    count, excludes = dice.choice((0, 0, 1, 2)), dice.random() < 0.2
    if job.elastic is not None or not count:
        return job
    if excludes:
        rest = sum(gpus_of.values()) - gpus_of[order[0]]
        return structs.replace(job, gpu_models_excluded=(order[0],)) if rest >= job.gpus else job
    named = order[:count]
    enough = sum(gpus_of[model] for model in named) >= job.gpus
    return structs.replace(job, gpu_models=tuple(named)) if enough else job


def _made_uneven(history: History, dice: Random) -> History:
    """GPUs are not equally fast, and gangs across nodes are slower: jobs that write checkpoints gain by moving."""
    gpus, slow, times = history.cluster.gpus, dice.choice((0.2, 0.5, 0.8)), dice.choice((1, 2, 4))
    scores = {
        name: tuple(dice.choice((2.0, 4.0)) if dice.random() < slow else 1.0 for _ in range(gpus))
        for name in ("compute", "memory")
    }
    jobs = tuple(
        structs.replace(
            job,
            arrival_s=times * job.arrival_s,
            job_class=dice.choice(tuple(scores)),
            checkpoint_s=dice.choice((0.0, 64.0)) if dice.random() < 0.9 else job.checkpoint_s,
            estimate_s=None,
        )
        for job in history.jobs
    )
    return structs.replace(
        history,
        jobs=jobs,
        cluster=structs.replace(
            history.cluster, scores={name: scores.get(name, (1.0,) * gpus) for name in JOB_CLASSES}
        ),
        policy=structs.replace(history.policy, placement="weft-best"),
        penalty=dice.choice((1.0, 2.0)),
        moves=MoveRules(
            margin=dice.choice((1.0, 2.0)),
            at_once_max=dice.choice((1, 2, 4)),
            cost_seconds=dice.choice((0.0, 8.0, 64.0)),
            every_seconds=dice.choice((1.0, 10.0, 64.0)),
        ),
    )


def _made_elastic(history: History, dice: Random) -> History:
    """Some jobs resize live; in some histories more GPUs idle."""
    part, times = dice.choice((0.0, 0.3, 0.9)), dice.choice((1, 1, 4))
    jobs = tuple(
        structs.replace(
            job,
            arrival_s=times * job.arrival_s,
            **({"elastic": _elastic(dice, job.gpus, history.cluster.gpus), "estimate_s": None} if lucky else {}),
        )
        for job, lucky in [(job, dice.random() < part) for job in history.jobs]
    )
    rigid = {job.id for job in jobs if job.elastic is None}
    failures = tuple((times * at, job_id) for at, job_id in history.failures if job_id in rigid)
    return structs.replace(history, jobs=jobs, failures=failures)


def _elastic(dice: Random, asked: int, most: int) -> Elastic:
    """It is as fast with each size, so that all times are whole seconds."""
    return Elastic(
        asked=asked,
        least=dice.randint(1, asked),
        most=dice.randint(asked, max(asked, min(most, 2 * asked + 2))),
        each=(1.0, 1.0, 1.0),
        exponent=0.0,
        live=True,
        resize_s=0.0,
    )


def _quotas(dice: Random, jobs: Sequence[TraceJob], gpus: int) -> tuple[Quota, ...]:
    """No limit is below what a job of the tenant needs: the job would wait for ever."""
    if dice.random() < 0.5:
        return ()
    found: list[Quota] = []
    for name in ("alice", "bob"):
        count = dice.randint(0, gpus // 2)
        least = max([1, count, *(job.gpus for job in jobs if job.tenant == name)])
        limit = {ALL: dice.randint(least, gpus) * WHOLE} if dice.random() < 0.5 else {}
        found.append(Quota(name=name, guaranteed={ALL: count * WHOLE} if count else {}, limit=limit))
    return tuple(found)


def _failures(dice: Random, jobs: Sequence[TraceJob]) -> tuple[tuple[float, str], ...]:
    if dice.random() < 0.5:
        return ()
    rigid = [job for job in jobs if job.elastic is None]
    of = [dice.choice(rigid) for _ in range(dice.randint(1, 3 * len(jobs)))] if rigid else []
    return tuple((job.arrival_s + dice.randint(0, 3000) + 0.5, job.id) for job in of)
