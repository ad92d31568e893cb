"""The believed speed of each GPU and class of each workload."""

from collections.abc import Iterable
from itertools import islice

from weft.domain.classes import JOB_CLASSES
from weft.messages.signals import GpuScore, PairSlowdown, WorkloadClass, WorkloadPenalty
from weft.planning.scores import GpuKey, Slowdowns
from weft.variability.models import RATIOS_MAX, ModelSpeeds, WorkloadRatios
from weft.variability.penalties import USUAL, believed

SLOWDOWN_NEWS = 0.01  # a smaller change of a slowdown is no reason for another record
RATIO_NEWS = 0.05  # a smaller change of the ratio of two models is noise
LEARNT_MAX = 50_000  # the newest workloads with a known class: a tenant may name any number


class ScoreCache:
    """`learnt`: the class of each workload. `slowdowns`: how jobs of two classes slow each other down on one GPU.
    `penalties`: how many times as long gangs of a workload take across nodes; of all others that is `usual_penalty`.
    `model_speeds`: how fast jobs are on each model of GPUs, by what workloads have shown on several of them.
    `changes` counts every new score, class, slowdown, penalty and ratio."""

    def __init__(
        self,
        scores: Iterable[GpuScore] = (),
        classes: Iterable[WorkloadClass] = (),
        slowdowns: Iterable[PairSlowdown] = (),
        penalties: Iterable[WorkloadPenalty] = (),
        ratios: Iterable[WorkloadRatios] = (),
        *,
        usual_penalty: float = USUAL,
    ) -> None:
        self.changes = 0
        self._usual_penalty = usual_penalty
        self.penalties: dict[str, float] = {}
        self.learn_penalties(penalties)
        self.slowdowns = _slowdowns(slowdowns)
        self.learnt = _classes(classes)
        self._ratios: dict[str, WorkloadRatios] = {}
        self.model_speeds = ModelSpeeds()
        self.learn_ratios(ratios)
        self._scores: dict[str, dict[GpuKey, GpuScore]] = {}  # by class
        self._note(scores)

    def is_news(self, score: GpuScore) -> bool:
        known = self.measured(score.job_class).get((score.node_id, score.gpu_index))
        return score.job_class in JOB_CLASSES and (known is None or known.believed != score.believed)

    def measured(self, job_class: str) -> dict[GpuKey, GpuScore]:
        """The measured scores of this class, by GPU."""
        return self._scores.get(job_class, {})

    def by_class(self) -> dict[str, dict[GpuKey, float]]:
        """The scores of every class that a job may have, the most sensitive class first."""
        return {
            job_class: {gpu: score.believed for gpu, score in self.measured(job_class).items()}
            for job_class in JOB_CLASSES
        }

    def rescore(self, scores: Iterable[GpuScore]) -> dict[str, dict[GpuKey, float]]:
        """Take in new scores; returns those that differ from the believed ones, by class."""
        latest = {(score.job_class, score.node_id, score.gpu_index): score for score in scores}.values()
        different: dict[str, dict[GpuKey, float]] = {}
        for score in filter(self.is_news, latest):
            different.setdefault(score.job_class, {})[score.node_id, score.gpu_index] = score.believed
        self._note(latest)
        self.changes += len(different)
        return different

    def is_learnt_anew(self, one: WorkloadClass) -> bool:
        return one.job_class in JOB_CLASSES and self.learnt.get(one.workload) != one.job_class

    def learn(self, classes: Iterable[WorkloadClass]) -> bool:
        """Take in new classes; returns whether any differs from the known ones. If so, `learnt` is a new mapping."""
        new = {workload: name for workload, name in _classes(classes).items() if self.learnt.get(workload) != name}
        if not new:
            return False
        self.changes += 1
        learnt = {**self.learnt, **new}
        self.learnt = dict(islice(learnt.items(), max(0, len(learnt) - LEARNT_MAX), None))
        return True

    def is_slowed_anew(self, slowdowns: Iterable[PairSlowdown]) -> bool:
        """Return True if the measured slowdowns (all known ones) differ from the cached ones by more than noise."""
        new = _slowdowns(slowdowns)
        if new.keys() != self.slowdowns.keys():
            return True
        return any(abs(new[pair] - self.slowdowns[pair]) >= SLOWDOWN_NEWS for pair in new)

    def slow(self, slowdowns: Iterable[PairSlowdown]) -> None:
        """Believe these, and no others."""
        self.slowdowns = _slowdowns(slowdowns)
        self.changes += 1

    def is_penalty_news(self, one: WorkloadPenalty) -> bool:
        return self.penalties.get(one.workload) != self._believed(one)

    def learn_penalties(self, penalties: Iterable[WorkloadPenalty]) -> bool:
        """Take in new penalties, the newest last; returns whether any differs from the known ones. If so, `penalties`
        is a new mapping."""
        new = {one.workload: self._believed(one) for one in penalties if self.is_penalty_news(one)}
        if not new:
            return False
        self.changes += 1
        known = {workload: penalty for workload, penalty in self.penalties.items() if workload not in new}
        self.penalties = dict(islice({**known, **new}.items(), max(0, len(known) + len(new) - LEARNT_MAX), None))
        return True

    def is_ratio_news(self, one: WorkloadRatios) -> bool:
        known = self._ratios.get(one.workload)
        if known is None or len(known.ratios) != len(one.ratios):
            return True
        return any(
            (new.model, new.other) != (old.model, old.other) or abs(new.times - old.times) > RATIO_NEWS * old.times
            for new, old in zip(one.ratios, known.ratios, strict=True)
        )

    def learn_ratios(self, ratios: Iterable[WorkloadRatios]) -> bool:
        """Take in new ratios between models, the newest last; returns whether any differs from the known ones. If so,
        `model_speeds` is another one."""
        new = {one.workload: one for one in ratios if self.is_ratio_news(one)}
        if not new:
            return False
        self.changes += 1
        known = {workload: one for workload, one in self._ratios.items() if workload not in new}
        self._ratios = dict(islice({**known, **new}.items(), max(0, len(known) + len(new) - RATIOS_MAX), None))
        self.model_speeds = ModelSpeeds(self._ratios.values(), self.learnt)
        return True

    def _believed(self, one: WorkloadPenalty) -> float:
        return believed(one.penalty, one.confidence, self._usual_penalty)

    def forget(self, node_id: str) -> None:
        """Drop the scores of the GPUs of a removed node."""
        for scores in self._scores.values():
            for gpu in [gpu for gpu in scores if gpu[0] == node_id]:
                del scores[gpu]

    def _note(self, scores: Iterable[GpuScore]) -> None:
        for score in scores:
            self._scores.setdefault(score.job_class, {})[score.node_id, score.gpu_index] = score


def _classes(classes: Iterable[WorkloadClass]) -> dict[str, str]:
    return {one.workload: one.job_class for one in classes if one.job_class in JOB_CLASSES}


def _slowdowns(slowdowns: Iterable[PairSlowdown]) -> Slowdowns:
    known = {(one.job_class, one.beside): one.believed for one in slowdowns}
    return {pair: believed for pair, believed in sorted(known.items()) if set(pair) <= set(JOB_CLASSES)}
