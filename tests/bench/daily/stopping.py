"""What stopping early saves in a sweep: the reallocator's own rule over learning curves drawn from the seed, in virtual
time, against running every element to its end. The curves are made up, so the figures say what the rule does with
curves like these, and nothing of any real training."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from statistics import fmean, median

from msgspec import Struct

from tests.bench.figures import Aim
from tests.support.builders import spec
from weft.domain.decoding.elements import elements_of
from weft.domain.job import Job, JobState
from weftd.reallocator.thinking.asha import Asha

SWEEPS, QUICK_SWEEPS = 40, 10
ELEMENTS, GPUS = 64, 8  # each element has one GPU
STEPS = 1024  # of an element that goes on to its end, one a second
AFTER, FACTOR = 16, 4
NOISE = 0.02  # of a reported loss, one standard deviation


class Curve(Struct, frozen=True, kw_only=True):
    """A loss that falls from `begins` towards `floor` by a power of the steps."""

    begins: float
    floor: float
    slowness: float
    power: float

    def at(self, step: int) -> float:
        return self.floor + (self.begins - self.floor) * (1.0 + step / self.slowness) ** -self.power


class Swept(Struct, frozen=True, kw_only=True):
    """`used`: the part of the GPU-seconds of all elements run to their ends. `behind`: by how much the best loss that
    was reached is above the best of all, as a part of how far the median is above it. `place`: of that element among
    all, 1 the best."""

    used: float
    behind: float
    place: int
    stopped: int


async def measure(home: Path, *, seed: int, quick: bool) -> dict[str, Aim]:
    del home
    chance = Random(seed)
    sweeps = [sweep(chance) for _ in range(QUICK_SWEEPS if quick else SWEEPS)]
    used, behind = fmean(one.used for one in sweeps), fmean(one.behind for one in sweeps)
    first = sum(one.place == 1 for one in sweeps) / len(sweeps)
    stopped = fmean(one.stopped for one in sweeps)
    print(
        f"  {len(sweeps)} sweeps of {ELEMENTS} elements on {GPUS} GPUs, each of {STEPS} steps: {stopped:.1f} stopped,"
        f" the best of all found in {first:.0%}, at worst the element of place {max(one.place for one in sweeps)}"
    )
    return {
        "early stopping: GPU-seconds used, of those of all elements run to their ends (%)": Aim(
            value=round(100 * used, 1), aim=40.0
        ),
        "early stopping: how far the best found is behind the best, of the way to the median (%)": Aim(
            value=round(100 * behind, 2), aim=5.0
        ),
    }


def sweep(chance: Random) -> Swept:
    swept = spec(
        "tune",
        array=f"0-{ELEMENTS - 1}",
        early_stop={"metric": "loss", "after": AFTER, "factor": FACTOR},
    )
    jobs = [
        Job(id=job_id, spec=one, tenant="alice", seq=number, submitted_at=0.0, priority=0, state=JobState.RUNNING)
        for number, (job_id, one) in enumerate(elements_of(swept, "a-1"))
    ]
    curves = {job.id: curve(chance) for job in jobs}
    asha = Asha()
    asha.learn(["a-1"], [])
    waiting, running, done = list(jobs), dict[str, int](), dict[str, int]()  # steps, by job
    by_id = {job.id: job for job in jobs}
    seconds = stopped = 0
    while waiting or running:
        while waiting and len(running) < GPUS:
            running[waiting.pop(0).id] = 0
        seconds += len(running)
        running = {job_id: steps + 1 for job_id, steps in running.items()}
        told = {job_id: progress(curves[job_id], steps, chance) for job_id, steps in running.items()}
        judged = asha.judge([by_id[job_id] for job_id in running], told)
        over = {one.reached.job_id for one in judged if one.why is not None}
        stopped += len(over)
        over |= {job_id for job_id, steps in running.items() if steps == STEPS}
        for job_id in over:
            done[job_id] = running.pop(job_id)
    ends = sorted(curve.at(STEPS) for curve in curves.values())
    found = min(curves[job_id].at(steps) for job_id, steps in done.items())
    return Swept(
        used=seconds / (ELEMENTS * STEPS),
        behind=(found - ends[0]) / (median(ends) - ends[0]),
        place=1 + sum(end < found for end in ends),
        stopped=stopped,
    )


def curve(chance: Random) -> Curve:
    """Good ones are rare, and some of the slow ones end well: what makes stopping early a risk."""
    return Curve(
        begins=chance.uniform(2.0, 2.6),
        floor=0.2 + 1.6 * chance.random() ** 0.7,
        slowness=chance.lognormvariate(2.5, 0.7),
        power=chance.uniform(0.6, 1.2),
    )


def progress(curve: Curve, step: int, chance: Random) -> Mapping[str, float]:
    return {"step": float(step), "loss": curve.at(step) * chance.gauss(1.0, NOISE)}
