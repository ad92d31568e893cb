"""Inference of 5 ms every 50 ms beside training that saturates the GPU with kernels of 1 ms."""

import time

from tests.bench.figures import Aim, quantile
from tests.bench.sharing.rig import Rig, ready, told

TIMES_ALONE = 1.3
KEPT_PERCENT = 85.0
THROUGHPUT_PERCENT = 98.5


def inference(rig: Rig, *, quick: bool) -> dict[str, Aim]:
    """The p99 of inference beside training, in times of what it is alone; and what training keeps of the rest."""
    seconds = 8.0 if quick else 40.0
    rig.share("inference", 300, latency=True)
    alone = told(rig.job("inference", "burst", 5_000, every_us=50_000, seconds=seconds))
    rig.share("training", 700)
    training = rig.job("training", "saturate", 1_000, seconds=600)
    ready(training)
    job = rig.job("inference", "burst", 5_000, every_us=50_000, seconds=seconds)
    ready(job)
    time.sleep(0.5)
    first = rig.ledger()
    time.sleep(seconds - 1.5)
    last = rig.ledger()
    beside = told(job)
    passed = last.at - first.at
    left = passed - (last.of[job.pid] - first.of[job.pid])
    kept = (last.of[training.pid] - first.of[training.pid]) / left * 100
    rig.clear()
    times = quantile(beside, 0.99) / quantile(alone, 0.99)
    for name, values in (("alone", alone), ("beside training", beside)):
        print(
            f"emulated, inference {name}: p50 {quantile(values, 0.5) / 1000:.2f} ms, "
            f"p90 {quantile(values, 0.9) / 1000:.2f} ms, p99 {quantile(values, 0.99) / 1000:.2f} ms"
        )
    print(f"emulated, training keeps {kept:.1f} % of what inference leaves")
    return {
        "emulated.inference_p99_times_alone": Aim(value=round(times, 2), aim=TIMES_ALONE),
        "emulated.training_keeps_percent": Aim(value=round(kept, 1), aim=KEPT_PERCENT, at_least=True),
    }


def bounded(rig: Rig, *, quick: bool) -> dict[str, Aim]:
    """Throughput of a job that is alone on the GPU under the hook and the arbiter, against one without them."""
    seconds = 3.0 if quick else 10.0
    rig.share("alone", 1000)
    found: list[float] = []
    for slot in (None, "alone"):
        job = rig.job(slot, "saturate", 1_000)
        ready(job)
        time.sleep(0.7)
        first = rig.ledger()
        time.sleep(seconds)
        last = rig.ledger()
        found.append((last.busy - first.busy) / (last.at - first.at))
        rig.end_jobs()
    rig.clear()
    part = found[1] / found[0] * 100
    print(f"emulated, a job alone: {found[0] * 100:.2f} % of the GPU without the hook, {found[1] * 100:.2f} % with it")
    return {"emulated.throughput_bounded_percent": Aim(value=round(part, 2), aim=THROUGHPUT_PERCENT, at_least=True)}
