"""GPUs that are slower than the typical one, in words: how much, for which class of jobs, by which measurements."""

from collections.abc import Iterable, Mapping, Sequence

from weft.domain.quantity import duration_text
from weft.domain.text import plural
from weft.messages.signals import GpuScore
from weft.planning.scores import GpuKey

SLOW = 0.05  # part of the typical time: a GPU slower by less is not mentioned
NAMED_MAX = 2


class SlowGpus:
    """`measured`: the measurements of each GPU, for one class of jobs."""

    def __init__(self, measured: Mapping[GpuKey, GpuScore], now: float) -> None:
        self._measured = measured
        self._now = now

    def taken(self, gpus: Iterable[GpuKey]) -> str:
        """The chosen GPUs that are slow, in words. Empty if there are none."""
        return self._named([score for gpu in gpus if (score := self._slower_than(gpu, 1.0)) is not None])

    def avoided(self, gpus: Iterable[GpuKey], slowest: float) -> str:
        """The GPUs not chosen that are slower than `slowest`, the slowest one chosen. Empty if there are none."""
        return self._named([score for gpu in gpus if (score := self._slower_than(gpu, max(1.0, slowest))) is not None])

    def _slower_than(self, gpu: GpuKey, than: float) -> GpuScore | None:
        score = self._measured.get(gpu)
        return score if score is not None and score.believed >= than + SLOW else None

    def _named(self, scores: Sequence[GpuScore]) -> str:
        slowest = sorted(scores, key=lambda score: (-score.believed, score.node_id, score.gpu_index))
        named = " and ".join(slow_text(score, self._now) for score in slowest[:NAMED_MAX])
        more = len(slowest) - NAMED_MAX
        return named + (f" and {more} more are slower" if more > 0 else "")


def slow_text(score: GpuScore, now: float) -> str:
    """Such as `gpu-3 of node-1 is 1.21× slower for compute-bound jobs (40 samples, 2m0s old, from jobs)`."""
    known: list[str] = []
    if score.confidence < 0.995:
        known.append(f"{100 * score.confidence:.0f} % sure, so it counts as {score.believed:.2f}×")
    if score.samples:
        known.append(plural(score.samples, "sample"))
    if score.measured_at is not None:
        known.append(f"{duration_text(max(0.0, now - score.measured_at))} old")
    if score.source:
        known.append(f"from {score.source}")
    if score.quarantined_until is not None and score.quarantined_until > now:
        known.append(f"not forgiven for {duration_text(score.quarantined_until - now)} more")
    whose = score.job_class if score.job_class == "mixed" else f"{score.job_class}-bound"
    told = f" ({', '.join(known)})" if known else ""
    return f"gpu-{score.gpu_index} of {score.node_id} is {score.score:.2f}× slower for {whose} jobs{told}"
