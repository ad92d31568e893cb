"""A sweep: one job for each learning rate, and the one with the smallest loss."""

import os
import sys

import weft

RATES = (0.001, 0.01, 0.1, 0.5)
PROGRAM = """
import sys
import weft

rate, weight = float(sys.argv[1]), 0.0
for step in range(1, 51):
    weight -= rate * (weight - 3.0)
    weft.step(step, of=50, loss=(weight - 3.0) ** 2)
"""


def main() -> None:
    jobs = {
        weft.submit(
            name=f"rate-{number}",
            command=[sys.executable, "-c", PROGRAM, str(rate)],
            gpus=1,
            labels={"sweep": "rates"},
            env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},  # so that the job finds the same packages
        ): rate
        for number, rate in enumerate(RATES)
    }
    losses: dict[float, float] = {}
    for job in weft.as_completed(jobs, timeout=600):
        if job.state == "succeeded" and job.view is not None:
            losses[jobs[job]] = job.view.progress["loss"]
        print(f"rate {jobs[job]}: {job.state}, loss {losses.get(jobs[job])}")
    best = min(losses, key=losses.__getitem__)
    print(f"the best rate is {best}")


if __name__ == "__main__":
    main()
