"""Makes the corpus: each recipe's job runs for a while, and what was said of it on the bus is kept."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from libs.messages.http import JobView
from libs.messages.nodes import ProgressSeen
from libs.messages.signals import NodeSampled
from tests.bench.nearchus.lab import Heard, Lab, lab
from tests.bench.nearchus.recipes import RECIPES, Recipe, burner

CORPUS = Path("tests/corpus")
WARM_SECONDS = 8.0
DECLARED_CPUS = 8.0  # more than the machine has, so that a neighbour may be placed that is too much for it
DIGITS = 4
PROGRESS_SECONDS = 1.9  # it is told twice a second, of windows that are longer
BYTES_MAX = 48_000


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One message, `at` the second since the epoch at which it was heard."""

    at: float
    kind: str
    message: Any


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, to which rank, and what of the job's placement its tuner would know."""

    label: str
    scenario: str
    job: str
    epoch: int
    began: float  # when all of it ran, on the clock of `at`
    rank: int
    ranks: dict[str, Any]


async def record(folder: Path, *, labels: Sequence[str] | None, seconds: float, tell: Callable[[str], None]) -> None:
    """One after another, on a machine that does nothing else."""
    numbers: Counter[str] = Counter()
    async with lab(cpus=DECLARED_CPUS) as made:
        for recipe in RECIPES:
            numbers[recipe.label] += 1
            if labels and recipe.label not in labels:
                continue
            path = folder / f"{recipe.label}-{numbers[recipe.label]}.jsonl"
            lines = await _record(made, recipe, seconds)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(line + b"\n" for line in lines))
            tell(f"{path.name}: {len(lines)} lines, {path.stat().st_size} bytes")


async def _record(made: Lab, recipe: Recipe, seconds: float) -> list[bytes]:
    if not recipe.noise:
        return await _of_job(made, recipe, seconds)
    async with made.job(burner(made.image, recipe.noise)):
        return await _of_job(made, recipe, seconds)


async def _of_job(made: Lab, recipe: Recipe, seconds: float) -> list[bytes]:
    async with made.job(recipe.spec(made.image)) as job:
        await asyncio.sleep(WARM_SECONDS)
        made.heard.clear()
        await asyncio.sleep(seconds)
        view = await made.client.job(job)
        heard = list(made.heard)
    lines = [msgspec.json.encode(_head(recipe, view))]
    told_at = 0.0
    for one in heard:
        if isinstance(one.message, ProgressSeen):
            if one.at - told_at < PROGRESS_SECONDS or not any(run.job_id == job for run in one.message.runs):
                continue
            told_at = one.at
        if (line := _line(one, view)) is not None and sum(map(len, lines)) + len(line) < BYTES_MAX:
            lines.append(line)
    return lines


def _head(recipe: Recipe, view: JobView) -> Head:
    assert view.placement is not None
    ranks = {str(one.rank): msgspec.to_builtins(one) for one in view.placement.allocations}
    scenario = f"{recipe.program} {recipe.arguments}" + f", {recipe.noise} burning threads beside it" * bool(
        recipe.noise
    )
    return Head(
        label=recipe.label,
        scenario=scenario,
        job=view.id,
        epoch=view.epoch,
        began=view.started_at or view.since,
        rank=recipe.rank,
        ranks=ranks,
    )


def _line(heard: Heard, view: JobView) -> bytes | None:
    """Of this job alone; GPUs are left out, since it holds none."""
    match heard.message:
        case NodeSampled(runs=runs) as sampled:
            kept: Any = replace(sampled, runs=tuple(run for run in runs if run.job_id == view.id), gpus=())
        case ProgressSeen(runs=told) as seen:
            kept = replace(seen, runs=tuple(run for run in told if run.job_id == view.id))
        case _:
            return None
    line = Line(at=round(heard.wall, 3), kind=type(kept).__name__, message=_short(msgspec.to_builtins(kept)))
    return msgspec.json.encode(line)


def _short(value: Any) -> Any:
    """Numbers as they were said, to so many digits; times stay as they are."""
    if isinstance(value, dict):
        return {name: part if name == "at" else _short(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_short(part) for part in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
