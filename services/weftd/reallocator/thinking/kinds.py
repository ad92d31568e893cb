"""Expected speed of a job with each number of replicas on each allowed GPU model."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from weft.domain.classes import class_of, workload_of
from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.domain.spec import Role
from weft.messages.signals import Curve
from weft.planning.locality import Locality
from weft.planning.partition import ALIKE, ElasticJob, Partition
from weft.planning.partition.seen import model_of, models_of
from weft.variability.curves import EXPONENT_USUAL, speed_at
from weft.variability.models import ModelRatio, ratios_in, relative_speeds

EXPONENT_LEAST = 0.5  # exponent of the speed that more replicas bring for certain without measurements
NO_RATIOS: Mapping[str, float] = {}


class Kinds:
    """The models of GPUs in a pool. `of_nodes`: by node, the model of most of its GPUs. `curves`: by subject;
    `locality`: estimated loss of gangs across nodes."""

    def __init__(
        self, nodes: Sequence[Node], curves: Mapping[str, Curve], jobs: Iterable[Job], locality: Locality | None = None
    ) -> None:
        self._locality = locality or Locality(across_nodes=1.0)
        self._largest: dict[str, int] = {}  # by model, the GPUs of the largest node that takes work
        self.of_nodes = models_of(nodes)
        self._curves = curves
        self._measured = _measured(curves, jobs) if len({*self.of_nodes.values()}) > 1 else []
        self._relative: dict[str, dict[str, float]] = {}  # by class of jobs
        self._memory: dict[str, int] = {}  # by model of nodes that take work, the memory of the largest GPU
        for node in nodes:
            if node.takes_any and node.capacity.gpus:
                most, model = max(gpu.memory for gpu in node.capacity.gpus), model_of(node)
                self._memory[model] = max(most, self._memory.get(model, 0))
                self._largest[model] = max(len(node.capacity.gpus), self._largest.get(model, 0))

    def suited(self, job: Job) -> list[str]:
        """The models that the job may have, by its specification."""
        least = job.spec.gpu_memory_bytes
        return [model for model, most in sorted(self._memory.items()) if most >= least and job.spec.may_have(model)]

    def speeds(self, job: Job, role: str, *, here: str) -> dict[str, tuple[float, ...]]:
        """By model, `speeds_of` the job; `here`: the model that it runs on, empty if it waits."""
        models = self.suited(job) if on_gpus(job.spec.roles[role]) else []
        ratios = self._ratios(class_of(job.spec)) if models else {}
        across = self._locality.across(workload_of(job.spec))
        here = here or (models[0] if models else "")

        def slower(model: str, count: int) -> float:
            gpus = count * job.spec.roles[role].gpus
            return across if gpus > self._largest.get(model, gpus) else 1.0

        return {
            model: speeds_of(job, role, self._curves, model=model, here=here, ratios=ratios, slower=slower)
            for model in models
        } or {ALIKE: speeds_of(job, role, self._curves)}

    def _ratios(self, job_class: str) -> Mapping[str, float]:
        """Usual speed of one GPU of each model for jobs of the class."""
        if job_class not in self._relative:
            self._relative[job_class] = relative_speeds(self.of_nodes.values(), job_class, self._measured)
        return self._relative[job_class]

    def chosen(self, elastic: Iterable[ElasticJob], jobs: Mapping[str, Job], partition: Partition) -> dict[str, str]:
        """By job, the model that the plan gives it, if it may have several and had another one until now."""
        found: dict[str, str] = {}
        for each in elastic:
            model = partition.models.get(each.job_id, "")
            if len(each.speeds) > 1 and model not in ("", jobs[each.job_id].gpu_model or each.model):
                found[each.job_id] = model
        return found


def _measured(curves: Mapping[str, Curve], jobs: Iterable[Job]) -> list[ModelRatio]:
    """The measured ratios between models of workloads; a workload has the class of its present jobs."""
    classes = {f"workload:{workload_of(job.spec)}": class_of(job.spec) for job in jobs}
    workloads = ((subject, curve) for subject, curve in curves.items() if subject.startswith("workload:"))
    return [ratio for subject, curve in workloads for ratio in ratios_in(curve, classes.get(subject, ""))]


def on_gpus(role: Role) -> bool:
    return role.gpus > 0 or role.share is not None


def elastic_role(job: Job) -> tuple[str, Role]:
    """The role whose size the planner chooses: the one with the widest range, then the most GPUs."""
    return max(
        job.spec.roles.items(),
        key=lambda each: (each[1].replicas.most - each[1].replicas.least, each[1].gpus, each[1].cpus),
    )


def speeds_of(
    job: Job,
    role: str,
    curves: Mapping[str, Curve],
    *,
    model: str = "",
    here: str = "",
    ratios: Mapping[str, float] = NO_RATIOS,
    slower: Callable[[str, int], float] = lambda model, count: 1.0,
) -> tuple[float, ...]:
    """The expected speed with `min` … `max` replicas of the role on GPUs of `model`, relative to the speed with the
    present number on GPUs of `here`, at the lower confidence bound.

    Beyond the measured sizes and models only the certain part of the expected growth counts; without measurements the
    speed grows with the square root of the replicas. `ratios`: usual speed of one GPU by model, used between a measured
    model and another. `slower`: by model and number of replicas, the factor on the job's time if no node holds them
    all; it counts only for sizes that were not measured.
    """
    spec = job.spec.roles[role]
    own, others = curves.get(f"job:{job.id}"), curves.get(f"workload:{workload_of(job.spec)}")
    now = max(1, job.granted[role] if job.state.holding else spec.replicas.want)
    at_now, _ = speed_at(own, now, now * spec.cpus, prior=others, model=here, ratios=ratios)
    usual = ratios.get(model, 1.0) / ratios.get(here, 1.0)
    found: list[float] = []
    for count in range(spec.replicas.least, spec.replicas.most + 1):
        speed, sure = speed_at(own, count, count * spec.cpus, prior=others, model=model, ratios=ratios)
        if at_now <= 0 or speed <= 0:
            ratio, sure = usual * (count / now) ** EXPONENT_USUAL, 0.0
        else:
            ratio = speed / at_now
        if ratio > 1.0:
            ratio **= (EXPONENT_LEAST + (EXPONENT_USUAL - EXPONENT_LEAST) * sure) / EXPONENT_USUAL
        ratio *= (slower(here, now) / slower(model, count)) ** (1.0 - sure)
        found.append(max(ratio, 1e-6))
    return tuple(found)
