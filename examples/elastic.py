"""Elastic training: a job that grows while it runs. Its ranks share the rows of each step by who is there then.

`python examples/elastic.py` submits this file and asks for a second rank; `python examples/elastic.py here` trains.
"""

import os
import sys
import time

import weft

ROWS, STEPS = 64, 200


def train() -> None:
    weft.should_stop()  # from here on, SIGTERM no longer ends the process
    sizes: list[int] = []
    for step in range(1, STEPS + 1):
        ranks = [member.rank for member in weft.members()]  # those that are there now
        if weft.should_stop() or weft.rank() not in ranks:
            sys.exit("stopped")  # an extra rank may leave at any time; rank 0 is of the core
        mine = range(ranks.index(weft.rank()), ROWS, len(ranks))
        time.sleep(0.001 * len(mine))  # the work: with more ranks each has less
        if sizes[-1:] != [len(ranks)]:
            sizes.append(len(ranks))
            print(f"step {step}: {len(ranks)} ranks, {len(mine)} rows each", flush=True)
        weft.step(step, of=STEPS)
    print(f"trained with at most {max(sizes)} ranks", flush=True)


def main() -> None:
    job = weft.run(
        [sys.executable, __file__, "here"],
        name="elastic",
        gpus=1,
        cpus=0.1,
        replicas={"min": 1, "want": 1, "max": 2},
        resize={"how": "live"},
        env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},  # so that the job finds the same packages
    )
    job.wait_until("running", timeout=60)
    job.scale(worker=2)  # where GPUs are free, Weft does this by itself
    for line in job.logs(follow=True, rank=0):
        print(line)
    job.result()


if __name__ == "__main__":
    train() if sys.argv[1:] == ["here"] else main()
