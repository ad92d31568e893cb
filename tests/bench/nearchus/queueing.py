"""S4: jobs that ask for more than they use come one after another. How long each waits, with and without reclaim."""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from tests.bench.nearchus.lab import Lab
from tests.bench.nearchus.measured import Traced, Waited, append
from tests.bench.nearchus.sides import actions, busy
from weft.domain.job import JobState
from weft.domain.spec import JobSpec, Role, Tuning, TuningMode

SIDES = {"off": TuningMode.OFF, "reclaim": TuningMode.ON}
EVERY_SECONDS = 5.0
DEVICE_MS, WORK = 18.0, 40  # of each step: an emulated wait, and what is computed; about 25 ms together
STEPS, CPUS = 3000, 0.9


class TraceJob(Struct, frozen=True, kw_only=True):
    """Each computes a quarter of the time, whatever it asks for."""

    cpus: float
    steps: int


class Trace(Struct, frozen=True, kw_only=True):
    """Jobs that come one after another, in this order."""

    name: str
    what: str
    jobs: tuple[TraceJob, ...]


def traces(*, cpus: float = CPUS, steps: int = STEPS) -> dict[str, Trace]:
    """By name. `cpus`, `steps`: of each job of the one in which all ask for too much."""
    alike = Trace(
        name="S4",
        what="six jobs, each in need of a quarter of a core: an emulated device does the rest; as they ask, two fit",
        jobs=(TraceJob(cpus=cpus, steps=steps),) * 6,
    )
    one = Trace(
        name="S4-one",
        what=(
            "a job of 9,000 steps asks for 1.6 cores, and five of 3,000 come behind it that ask for 0.3 cores; each"
            " needs a quarter of a core: an emulated device does the rest; as they ask, one fits beside the first"
        ),
        jobs=(TraceJob(cpus=1.6, steps=9000), *(TraceJob(cpus=0.3, steps=3000),) * 5),
    )
    return {trace.name: trace for trace in (alike, one)}


TRACES = traces()


async def play(lab: Lab, trace: Trace, side: str, *, rep: int) -> Traced:
    """Submit, and wait until all have ended."""
    began, wall = time.monotonic(), time.time()
    async with asyncio.TaskGroup() as tasks:
        ended = [tasks.create_task(_one(lab, trace, side, number)) for number in range(len(trace.jobs))]
    over = time.monotonic()
    ids = [task.result()[0] for task in ended]
    made = [action for job in ids for action in actions(await lab.story(job), wall)]
    return Traced(
        scenario=trace.name,
        side=side,
        rep=rep,
        at=wall,
        seconds=round(over - began, 1),
        elsewhere=busy(lab, ids, began, over)[0],
        steps=trace.jobs[0].steps,
        cpus=trace.jobs[0].cpus,
        behind=trace.jobs[-1].cpus,
        jobs=tuple(task.result()[1] for task in ended),
        actions=tuple(sorted(made, key=lambda action: action.at)),
    )


async def _one(lab: Lab, trace: Trace, side: str, number: int) -> tuple[str, Waited]:
    await asyncio.sleep(number * EVERY_SECONDS)
    submitted = await lab.client.submit(
        _spec(lab.image, trace.jobs[number], f"{trace.name.lower()}-{side}-{number}", SIDES[side])
    )
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


def _spec(image: str, job: TraceJob, name: str, mode: TuningMode) -> JobSpec:
    arguments = ("--steps", str(job.steps), "--device-ms", str(DEVICE_MS), "--work", str(WORK))
    return JobSpec(
        name=name,
        image=image,
        command=("python3", "-m", "jobs.alone", *arguments),
        roles={"worker": Role(cpus=job.cpus, memory="256MiB")},
        grace="2s",
        tuning=Tuning(mode=mode, cpus=job.cpus),
    )


async def compare_queues(lab: Lab, trace: Trace, *, reps: int, folder: Path, tell: Callable[[str], None]) -> None:
    for rep in range(reps):
        for side in SIDES if rep % 2 == 0 else reversed(SIDES):
            result = await play(lab, trace, side, rep=rep)
            append(folder / f"{trace.name}.jsonl", result)
            mean = sum(job.whole for job in result.jobs) / len(result.jobs)
            waited = sum(job.queued for job in result.jobs) / len(result.jobs)
            tell(f"{trace.name} {side}: waited {waited:.1f} s, done after {mean:.1f} s, {len(result.actions)} changes")
