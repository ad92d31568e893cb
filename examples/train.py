"""A job that trains, reports its steps, saves checkpoints, and resumes where it was stopped.

`python examples/train.py` submits this file and follows it; `python examples/train.py here` trains without Weft.
"""

import json
import os
import sys

import weft

STEPS = 200


def train() -> None:
    """Fit `y = weight * x` by gradient descent."""
    checkpoint = weft.checkpoint_dir / "checkpoint.json"
    step, weight = json.loads(checkpoint.read_text()) if checkpoint.exists() else (0, 0.0)
    weft.should_stop()  # from here on, SIGTERM no longer ends the process
    print(f"resumed at step {step}" if step else "begins", flush=True)
    while step < STEPS:
        error = weight - 3.0
        step, weight = step + 1, weight - 0.1 * error
        weft.step(step, of=STEPS, loss=error**2)
        if weft.should_stop() or step % 50 == 0:
            unfinished = checkpoint.with_suffix(".unfinished")
            unfinished.write_text(json.dumps([step, weight]))
            unfinished.replace(checkpoint)
        if weft.should_stop():
            sys.exit("stopped: the next try resumes from the checkpoint")
    print(f"weight {weight:.3f} after {step} steps", flush=True)


def main() -> None:
    job = weft.run(
        [sys.executable, __file__, "here"],
        name="train",
        gpus=1,
        checkpoints={"on_stop": True},
        env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},  # so that the job finds the same packages
    )
    for line in job.logs(follow=True):
        print(line)
    job.result()
    print(f"{job.name} {job.state}: {job.view.progress if job.view else {}}")


if __name__ == "__main__":
    train() if sys.argv[1:] == ["here"] else main()
