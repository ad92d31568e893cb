"""S4: jobs that ask for more than they use come one after another. How long each waits, with and without reclaim."""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from libs.domain.job import JobState
from libs.domain.spec import JobSpec, Role, Tuning, TuningMode
from tests.bench.nearchus.lab import Lab
from tests.bench.nearchus.measured import Traced, Waited, append
from tests.bench.nearchus.sides import actions, busy

NAME = "S4"
WHAT = "six jobs, each in need of a quarter of a core, since an emulated device does the rest; as they ask, two fit"
SIDES = {"off": TuningMode.OFF, "reclaim": TuningMode.ON}


class Trace(Struct, frozen=True, kw_only=True):
    """A job every `every` seconds, of so many steps; each step computes, and waits for an emulated device."""

    jobs: int = 6
    every: float = 5.0
    steps: int = 3000  # of about 25 ms
    cpus: float = 0.9
    device_ms: float = 18.0
    work: int = 40


async def play(lab: Lab, trace: Trace, side: str, *, rep: int) -> Traced:
    """Submit, and wait until all have ended."""
    began, wall = time.monotonic(), time.time()
    async with asyncio.TaskGroup() as tasks:
        ended = [tasks.create_task(_one(lab, trace, side, number)) for number in range(trace.jobs)]
    over = time.monotonic()
    ids = [task.result()[0] for task in ended]
    made = [action for job in ids for action in actions(await lab.story(job), wall)]
    return Traced(
        scenario=NAME,
        side=side,
        rep=rep,
        at=wall,
        seconds=round(over - began, 1),
        elsewhere=busy(lab, ids, began, over)[0],
        steps=trace.steps,
        cpus=trace.cpus,
        jobs=tuple(task.result()[1] for task in ended),
        actions=tuple(sorted(made, key=lambda action: action.at)),
    )


async def _one(lab: Lab, trace: Trace, side: str, number: int) -> tuple[str, Waited]:
    await asyncio.sleep(number * trace.every)
    submitted = await lab.client.submit(_spec(lab.image, trace, side, number))
    try:
        view = await lab.until(submitted.id, JobState.SUCCEEDED, seconds_max=1200.0)
    finally:
        await lab.end(submitted.id)
    story = await lab.story(submitted.id)
    started = next(event for event in story if event.type.endswith(".started"))
    assert view.ended_at is not None
    queued = _seconds(started.time) - view.submitted_at
    return submitted.id, Waited(queued=round(queued, 2), whole=round(view.ended_at - view.submitted_at, 2))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _spec(image: str, trace: Trace, side: str, number: int) -> JobSpec:
    arguments = ("--steps", str(trace.steps), "--device-ms", str(trace.device_ms), "--work", str(trace.work))
    return JobSpec(
        name=f"s4-{side}-{number}",
        image=image,
        command=("python3", "-m", "jobs.alone", *arguments),
        roles={"worker": Role(cpus=trace.cpus, memory="256MiB")},
        grace="2s",
        tuning=Tuning(mode=SIDES[side], cpus=trace.cpus),
    )


async def compare_queues(lab: Lab, trace: Trace, *, reps: int, folder: Path, tell: Callable[[str], None]) -> None:
    for rep in range(reps):
        for side in SIDES if rep % 2 == 0 else reversed(SIDES):
            result = await play(lab, trace, side, rep=rep)
            append(folder / f"{NAME}.jsonl", result)
            mean = sum(job.whole for job in result.jobs) / len(result.jobs)
            waited = sum(job.queued for job in result.jobs) / len(result.jobs)
            tell(f"{NAME} {side}: waited {waited:.1f} s, done after {mean:.1f} s, {len(result.actions)} changes")
