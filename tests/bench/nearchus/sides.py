"""Each side of a comparison runs the same job for a while: what came of it."""

import asyncio
import time
from collections import Counter
from collections.abc import Collection
from datetime import datetime
from itertools import pairwise

from tests.bench.nearchus.lab import Lab
from tests.bench.nearchus.measured import Action, Measured
from tests.bench.nearchus.scenarios import Scenario, Share
from weft.messages.http import EventView
from weft.messages.signals import NodeSampled, PoolReviewed

REPORTED_WITHIN = 1.5  # seconds: what was done by then has been heard
CURVE_SECONDS = 5.0
SETTLED_PART = 0.25  # of a run, its last


async def run_side(
    lab: Lab,
    scenario: Scenario,
    side: str,
    share: Share,
    *,
    seconds: float,
    rep: int,
    tuned: bool = False,
    outscales: bool = False,
) -> Measured:
    """One job, from the moment all its ranks run."""
    spec = scenario.spec(lab.image, share, tuned=tuned, tag=f"-{side}", outscales=outscales)
    async with lab.job(spec) as job:
        began, wall = time.monotonic(), time.time()
        await asyncio.sleep(seconds + REPORTED_WITHIN)
        ended = began + seconds
        points = [began + CURVE_SECONDS * number for number in range(int(seconds / CURVE_SECONDS) + 1)]
        elsewhere, used = busy(lab, {job}, began, ended)
        return Measured(
            scenario=scenario.name,
            side=side,
            rep=rep,
            at=wall,
            seconds=seconds,
            speed=lab.speed(job, began, ended),
            settled=lab.speed(job, ended - SETTLED_PART * seconds, ended),
            elsewhere=elsewhere,
            cpus_used=used,
            cpus=dict(share.cpus),
            memory=share.memory,
            egress=dict(share.egress),
            curve=tuple(round(lab.speed(job, a, b)) for a, b in pairwise(points)),
            actions=actions(await lab.story(job), wall),
            verdicts=verdicts(lab, job),
        )


def busy(lab: Lab, jobs: Collection[str], began: float, ended: float) -> tuple[float, float]:
    """Mean cores that were busy with anything else, and with these jobs."""
    elsewhere, used = list[float](), list[float]()
    for heard in lab.heard:
        if began <= heard.at <= ended and isinstance(heard.message, NodeSampled):
            own = sum(run.cpus_used or 0.0 for run in heard.message.runs if run.job_id in jobs)
            used.append(own)
            elsewhere.append(max(0.0, (heard.message.host.cpus_used or 0.0) - own))
    return _mean(elsewhere), _mean(used)


def _mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 3) if values else 0.0


def actions(story: tuple[EventView, ...], began: float) -> tuple[Action, ...]:
    """Every change while it ran, from its story."""
    made = []
    for event in story:
        if not event.type.endswith((".tuned", ".scaled", ".resized")) or event.data.cause is None:
            continue
        held = event.data.placement.allocations if event.data.placement is not None else ()
        made.append(
            Action(
                at=round(datetime.fromisoformat(event.time).timestamp() - began, 1),
                code=event.data.cause.code,
                sentence=event.data.cause.sentence,
                numbers=event.data.cause.numbers,
                cpus={
                    role: tuple(one.cpus for one in held if one.role == role) for role in sorted({a.role for a in held})
                },
                memory=tuple(one.memory for one in held),
                egress=tuple(one.egress for one in held),
            )
        )
    return tuple(made)


def verdicts(lab: Lab, job: str) -> dict[str, int]:
    """How often each was said of a rank of it, or of the whole."""
    counted: Counter[str] = Counter()
    for heard in lab.heard:
        if isinstance(heard.message, PoolReviewed):
            for verdict in heard.message.verdicts:
                if verdict.job_id == job:
                    counted["job: " * (verdict.rank < 0) + verdict.code] += 1
    return dict(sorted(counted.items()))
