"""Makes the corpus: each recipe's job runs for a while, and what was said of it on the bus is kept."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from tests.bench.nearchus.lab import Heard, Lab, lab
from tests.bench.nearchus.recipes import RECIPES, Recipe, burner
from tests.support.corpus import Head, Line
from weft.messages.http import JobView
from weft.messages.nodes import ProgressSeen
from weft.messages.signals import NodeSampled

WARM_SECONDS = 8.0
TOGETHER_CPUS = 1.1
DECLARED_CPUS = 8.0  # more than the machine has, so that a neighbour may be placed that is too much for it
DIGITS = 4
PROGRESS_SECONDS = 1.9  # it is told twice a second, of windows that are longer
BYTES_MAX = 80_000


async def record(folder: Path, *, labels: Sequence[str] | None, seconds: float, tell: Callable[[str], None]) -> None:
    """One after another, on a machine that does nothing else."""
    os.makedirs(folder, exist_ok=True)

    async def one(name: str, recipe: Recipe) -> None:
        lines = await _record(made, recipe, seconds)
        (folder / name).write_bytes(b"".join(line + b"\n" for line in lines))
        tell(f"{name}: {len(lines)} lines, {sum(map(len, lines)) + len(lines)} bytes")

    async with lab(cpus=DECLARED_CPUS) as made:
        for batch in batches(labels):
            async with asyncio.TaskGroup() as tasks:
                for name, recipe in batch.items():
                    tasks.create_task(one(name, recipe))
            made.heard.clear()


def batches(labels: Sequence[str] | None) -> list[dict[str, Recipe]]:
    """Which may run beside each other: those that together use no more than the machine has, and share nothing else."""
    numbers: Counter[str] = Counter()
    made: list[dict[str, Recipe]] = []
    for recipe in RECIPES:
        numbers[recipe.label] += 1
        stem = f"{recipe.label}-{numbers[recipe.label]}"
        if labels and not {recipe.label, stem} & set(labels):
            continue
        name = f"{stem}.jsonl"
        beside = [] if recipe.uses is None else [b for b in made if _used(b) + recipe.uses <= TOGETHER_CPUS]
        (beside[0] if beside else made.append({}) or made[-1])[name] = recipe
    return made


def _used(batch: dict[str, Recipe]) -> float:
    return sum(DECLARED_CPUS if recipe.uses is None else recipe.uses for recipe in batch.values())


async def _record(made: Lab, recipe: Recipe, seconds: float) -> list[bytes]:
    if not recipe.noise:
        return await _of_job(made, recipe, seconds)
    async with made.job(burner(made.image, recipe.noise)):
        return await _of_job(made, recipe, seconds)


async def _of_job(made: Lab, recipe: Recipe, seconds: float) -> list[bytes]:
    async with made.job(recipe.spec(made.image)) as job:
        await asyncio.sleep(WARM_SECONDS)
        begin = time.monotonic()
        await asyncio.sleep(seconds)
        view = await made.client.job(job)
        heard = [one for one in made.heard if one.at >= begin]
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
    ranks = {str(one.rank): one for one in view.placement.allocations}
    scenario = f"{recipe.program} {recipe.arguments}" + f", {recipe.noise} burning containers beside it" * bool(
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
