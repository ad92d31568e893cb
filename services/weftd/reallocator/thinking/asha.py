"""Early stopping of sweeps: decides which elements of an array continue beyond a rung, by their metric there.

Rung k is at step `after` times `factor` to the power of k. An element that reaches a rung is compared once, with those
that reached it before, so none waits for slower ones.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from weft.domain.job import Cause, CauseCode, Job
from weft.domain.spec import EarlyStop, MetricGoal
from weft.domain.sweeps import RungReached

STEP = "step"
RUNGS_MAX = 32


class AtRung(Struct, frozen=True, kw_only=True):
    """An element at a rung; with a `cause` it is stopped there."""

    reached: RungReached
    why: Cause | None = None


class Asha:
    def __init__(self) -> None:
        self._values: dict[str, dict[int, dict[str, float]]] = {}  # by array, rung and job

    def knows(self, array: str) -> bool:
        return array in self._values

    def learn(self, arrays: Iterable[str], reached: Iterable[RungReached]) -> None:
        """Replace the known rung values of these arrays by the stored ones."""
        self._values |= {array: {} for array in arrays}
        for one in reached:
            self._values[one.array].setdefault(one.rung, {})[one.job_id] = one.value

    def forget_others(self, arrays: Iterable[str]) -> None:
        there = set(arrays)
        self._values = {array: known for array, known in self._values.items() if array in there}

    def judge(self, jobs: Sequence[Job], progress: Mapping[str, Mapping[str, float]]) -> list[AtRung]:
        """Judge elements of known arrays at rungs that are new for them. Each is compared with those before it, so all
        must be stored in this order."""
        return [judged for job in jobs for judged in self._of(job, progress.get(job.id, {}))]

    def _of(self, job: Job, progress: Mapping[str, float]) -> list[AtRung]:
        rule, element = job.spec.early_stop, job.spec.element
        if rule is None or element is None or rule.metric not in progress:
            return []
        judged: list[AtRung] = []
        value, at = progress[rule.metric], progress.get(STEP, 0.0)
        for rung in range(RUNGS_MAX):
            step = rule.after * rule.factor**rung
            if step > at:
                break
            there = self._values[element.array].setdefault(rung, {})
            if job.id in there:
                continue
            there[job.id] = value
            reached = RungReached(array=element.array, job_id=job.id, rung=rung, value=value)
            judged.append(AtRung(reached=reached, why=_why_not_on(rule, value, step, there.values())))
            if judged[-1].why is not None:
                break
        return judged


def _why_not_on(rule: EarlyStop, value: float, step: int, there: Iterable[float]) -> Cause | None:
    """Why this element is stopped, or None if it continues. `there` includes its own value."""
    known = list(there)
    better = sum(other < value if rule.goal is MetricGoal.MIN else other > value for other in known)
    on = -(-len(known) // rule.factor)  # rounded up
    if len(known) < rule.factor or better < on:
        return None
    sentence = (
        f"{rule.metric} {value:g} at step {step}: {better} of the {len(known)} elements that reached it are"
        f" better, and the best {on} continue"
    )
    numbers = {
        "value": value,
        "step": float(step),
        "better": float(better),
        "of": float(len(known)),
        "go_on": float(on),
    }
    return Cause(code=CauseCode.STOPPED_EARLY, sentence=sentence, numbers=numbers)
