"""Many processes that start together, and many that are killed while they have the turn."""

import random
import time

from tests.bench.figures import Aim, quantile
from tests.bench.sharing.rig import Rig, ready, told
from weft.sharing import slots

SLOTS = 6
ADDED_MS = 50.0
FREED_MS = 50.0


def starting(rig: Rig, *, quick: bool) -> dict[str, Aim]:
    """Processes that start together and run one kernel: what hook and arbiter add to the time each takes."""
    count = 60 if quick else 300
    for number in range(SLOTS):
        rig.share(f"s{number}", 1000 // SLOTS)
    found: dict[bool, list[float]] = {}
    for hooked in (False, True):
        jobs = [rig.job(f"s{number % SLOTS}" if hooked else None, "once", 100) for number in range(count)]
        found[hooked] = [us / 1000 for job in jobs for us in told(job)]
        rig.end_jobs()
    rig.clear()
    for hooked, name in ((False, "without"), (True, "with")):
        values = found[hooked]
        print(
            f"emulated, {count} processes start together {name} the hook: p50 {quantile(values, 0.5):.1f} ms, "
            f"p99 {quantile(values, 0.99):.1f} ms"
        )
    added = quantile(found[True], 0.99) - quantile(found[False], 0.99)
    return {"emulated.start_together_added_ms_p99": Aim(value=round(added, 1), aim=ADDED_MS)}


def killing(rig: Rig, seed: int, *, quick: bool) -> dict[str, Aim]:
    """Jobs that are killed at random instants beside a job that saturates its share.

    The emulated device is never idle for long if the share of a killed job is freed at once: the longest time without a
    launch of the neighbour counts.
    """
    draw = random.Random(seed)
    rig.share("neighbour", 500)
    rig.share("killed", 500)
    neighbour = rig.job("neighbour", "saturate", 1_000, seconds=3600)
    ready(neighbour)
    time.sleep(0.5)
    pauses: list[float] = []
    for _ in range(50 if quick else 1_000):
        victim = rig.job("killed", "saturate", 1_000)
        ready(victim)
        time.sleep(draw.uniform(0.0, 0.06))
        victim.kill()
        pauses.append(_until_moves(rig, neighbour.pid))
        victim.communicate()
        rig.forget(victim)
    assert neighbour.poll() is None, "the neighbour ended"
    seen = slots.read_seen(rig.root / "neighbour")
    assert seen is not None
    rig.clear()
    print(
        f"emulated, {len(pauses)} holders killed: the neighbour goes on after {quantile(pauses, 0.5):.1f} ms, "
        f"p99 {quantile(pauses, 0.99):.1f} ms, at most {max(pauses):.1f} ms; it gave up {seen.given_up} waits"
    )
    return {
        "emulated.killed_share_freed_ms_p99": Aim(value=round(quantile(pauses, 0.99), 1), aim=FREED_MS),
        "emulated.neighbour_waits_given_up": Aim(value=seen.given_up, aim=0),
    }


def _until_moves(rig: Rig, pid: int) -> float:
    """How many ms until the device runs more of this process."""
    began = time.monotonic()
    count = rig.kernels(pid)
    while rig.kernels(pid) == count and time.monotonic() < began + 5:
        time.sleep(0.0005)
    return (time.monotonic() - began) * 1000
