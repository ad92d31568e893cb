"""The tuner and the planner as they are shipped, on jobs that really run: NEARCHUS's S1 to S3, and ten elastic jobs.

The tuner has the settings of the reallocator as the service reads them, and the job says nothing of a mode; it has as
many cores in all as the two baselines. Its gain is the mean speed of the whole run, the search included, over the best
baseline: equal cores, and cores in proportion to what a user would ask for.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import structs

from tests.bench import elastic
from tests.bench.figures import Aim, Figures
from tests.bench.nearchus.comparing import OURS, Lengths, compare
from tests.bench.nearchus.image import ImageMissingError, base, has_base
from tests.bench.nearchus.lab import lab
from tests.bench.nearchus.measured import BUSY_ELSEWHERE, Measured, measured
from tests.bench.nearchus.scenarios import SCENARIOS
from tests.bench.partition.dorm import shipped_settings

NAMES = ("S1", "S2", "S3")
GAIN, SCENARIOS_WITH_IT = 0.714, 2
LENGTHS = Lengths(fixed=40.0, ours=240.0, grid=0.0)
LENGTHS_QUICK = Lengths(fixed=30.0, ours=120.0, grid=0.0)


def tuner(*, quick: bool) -> dict[str, Aim]:
    """By scenario, the gain; and how many scenarios reach it."""
    try:
        gains = asyncio.run(_gains(LENGTHS_QUICK if quick else LENGTHS))
    except ImageMissingError as error:
        print(f"the tuner was not measured: {error}")
        return {}
    aims = {f"tuner, {name}, gain": Aim(value=round(gain, 3), aim=GAIN, at_least=True) for name, gain in gains.items()}
    reached = sum(gain >= GAIN for gain in gains.values())
    return aims | {"tuner, scenarios with that gain": Aim(value=reached, aim=SCENARIOS_WITH_IT, at_least=True)}


async def _gains(lengths: Lengths) -> Mapping[str, float]:
    shipped = shipped_settings()
    settings = {
        "REALLOCATOR_WINDOW_SECONDS": f"{shipped.window_seconds:g}",
        "REALLOCATOR_REVIEW_SECONDS": f"{shipped.review_seconds:g}",
    }
    gains: dict[str, float] = {}
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        async with lab(settings=settings) as made:
            for name in NAMES:
                scenario = SCENARIOS[name]
                scenario = structs.replace(scenario, tuning=structs.replace(scenario.tuning, mode=None))
                await compare(
                    made,
                    scenario,
                    reps=1,
                    lengths=lengths,
                    folder=Path(folder),
                    tell=lambda line: print(line, flush=True),
                )
                gains[name] = _gain(measured(Path(folder), [name])[name])
    return gains


def _gain(runs: list[Measured]) -> float:
    (ours,) = (run for run in runs if run.side == OURS)
    if any(run.disturbed for run in runs):
        print(f"{ours.scenario}: disturbed, other work took more than {BUSY_ELSEWHERE:g} cores", flush=True)
    for action in ours.actions:
        print(f"  {ours.scenario} after {action.at:.0f} s: {action.code}: {action.sentence}", flush=True)
    return ours.steady / max(run.steady for run in runs if run.side != OURS) - 1.0


def sizes(seed: int, *, quick: bool) -> dict[str, Aim]:
    """Ten elastic jobs with fixed sizes, with Dorm's rule and with the shipped planner."""
    image = base() if has_base() else ""
    found = asyncio.run(elastic.compared(Figures(), seed=seed, quick=quick, image=image))
    return {f"live, {name}": aim for name, aim in found.items()}
