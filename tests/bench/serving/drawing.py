"""A picture of the measured day: rate, latency, replicas and loans of each service over its seconds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.figures import quantile
from tests.bench.serving.client import Answer
from tests.bench.serving.live import LATENCY_S, Watched

PART_S = 2.0


def draw(watched: Mapping[str, Watched], path: Path) -> None:
    """Write it, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(3, len(watched), figsize=(6 * len(watched), 7), sharex=True, squeeze=False)
    for column, (name, each) in enumerate(sorted(watched.items())):
        rate, latency, size = (row[column] for row in rows)
        rate.set_title(name)
        times = [at for at, _ in each.steps]
        rate.step([*times, times[-1] * 2 - times[-2]], [*(r for _, r in each.steps), 0], where="post", label="offered")
        parts = _parts(each.answers)
        rate.plot(list(parts), [len(found) / PART_S for found in parts.values()], ".", label="sent")
        for part, style in ((0.5, "-"), (0.99, "-")):
            values = [quantile([_took(answer) for answer in found], part) * 1000 for found in parts.values()]
            latency.plot(list(parts), values, style, label=f"p{part * 100:g}")
        latency.axhline(LATENCY_S * 1000, linestyle="--", color="grey", label="objective")
        latency.set_yscale("log")
        at = [sample.at for sample in each.samples]
        size.step(at, [sample.wanted for sample in each.samples], where="post", label="wanted")
        size.step(at, [sample.ready for sample in each.samples], where="post", label="ready")
        size.fill_between(at, [sample.borrowed for sample in each.samples], step="post", alpha=0.3, label="borrowed")
        size.set_xlabel("seconds")
        for axes, what in ((rate, "requests/s"), (latency, "first byte, ms"), (size, "replicas")):
            axes.set_ylabel(what)
            axes.legend(loc="upper left", fontsize=8)
    figure.suptitle("A day in minutes: emulated GPUs, real processes", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def _took(answer: Answer) -> float:
    """A request without an answer counts as one of 30 s."""
    return answer.first_s if 200 <= answer.status < 300 else 30.0


def _parts(answers: Sequence[Answer]) -> dict[float, list[Answer]]:
    found: dict[float, list[Answer]] = {}
    for answer in sorted(answers, key=lambda answer: answer.due):
        found.setdefault(answer.due // PART_S * PART_S, []).append(answer)
    return found
