"""Sides in turn, ABBA: forwards and backwards, so that what drifts falls on all of them alike."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from tests.bench.nearchus.lab import Lab
from tests.bench.nearchus.measured import Measured, append
from tests.bench.nearchus.scenarios import Scenario, Share
from tests.bench.nearchus.sides import run_side

EQUAL, ASKED, OURS, ORACLE, GRID = "equal", "proportional", "ours", "oracle", "grid"
OUTSCALED = "outscaled"
"""Ours, which may try more replicas besides, of the same cores."""


class Lengths(Struct, frozen=True, kw_only=True):
    """Seconds. A fixed split goes on evenly, so it needs no more than a window of it; ours has to find its own."""

    fixed: float = 40.0
    ours: float = 180.0
    grid: float = 8.0


async def compare(
    lab: Lab,
    scenario: Scenario,
    *,
    reps: int,
    lengths: Lengths,
    folder: Path,
    tell: Callable[[str], None],
    outscales: bool = False,
) -> None:
    """The grid first, which finds the oracle's split; then all sides, `reps` times. With `outscales` one side more;
    where no time is left for the grid, there is no oracle."""

    async def one(side: str, share: Share, rep: int) -> Measured:
        tuned = side in (OURS, OUTSCALED)
        seconds = lengths.ours if tuned else lengths.grid if side == GRID else lengths.fixed
        more = side == OUTSCALED
        result = await run_side(lab, scenario, side, share, seconds=seconds, rep=rep, tuned=tuned, outscales=more)
        append(folder / f"{scenario.name}.jsonl", result)
        tell(f"{scenario.name} {side} {dict(share.cpus)}: {result.speed:.0f}/s, elsewhere {result.elsewhere:.2f} cores")
        return result

    best = None
    fastest = -1.0
    for share in scenario.grid if lengths.grid else ():
        if (result := await one(GRID, share, 0)).settled > fastest:
            best, fastest = share, result.settled
    turn = [(EQUAL, scenario.equal)]
    if scenario.asked != scenario.equal:
        turn.append((ASKED, scenario.asked))
    turn.append((OURS, scenario.equal))
    if outscales and scenario.most:
        turn.append((OUTSCALED, scenario.equal))
    if best is not None:
        turn.append((ORACLE, best))
    for rep in range(reps):
        for side, share in turn if rep % 2 == 0 else turn[::-1]:
            await one(side, share, rep)
