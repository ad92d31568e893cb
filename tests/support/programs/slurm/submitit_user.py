"""A program of a person who uses Submitit on Slurm: its folder is the argument. It knows nothing of Weft."""

import sys
import time
from pathlib import Path

import submitit


def add(a: int, b: int) -> int:
    print("adds", a, b)
    return a + b


def fail() -> None:
    raise ValueError("no luck")


class Counting:
    """Counts once more each time it is started, and saves itself when it is asked to."""

    def __init__(self, folder: Path, started: int = 0) -> None:
        self.folder, self.started = folder, started

    def __call__(self) -> int:
        self.started += 1
        if self.started == 1:
            (self.folder / "first").touch()
            time.sleep(600)
        return self.started

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        return submitit.helpers.DelayedSubmission(Counting(self.folder, self.started))


folder = Path(sys.argv[1])
executor = submitit.AutoExecutor(folder=folder / "%j")
assert executor.cluster == "slurm"
executor.update_parameters(cpus_per_task=1, mem_gb=0.5, timeout_min=10, slurm_partition="default")
job = executor.submit(add, 5, 7)
assert job.result() == 12
assert "adds 5 7" in (job.stdout() or ""), "its output is in the file that sbatch was told"
assert [one.result() for one in executor.map_array(add, [1, 2], [10, 20])] == [11, 22]
failing = executor.submit(fail)
assert "ValueError: no luck" in str(failing.exception())
failing.watcher.update()
assert failing.state in ("FAILED", "COMPLETING"), failing.state
patient = executor.submit(time.sleep, 600)
patient.cancel()
assert isinstance(patient.exception(), submitit.core.utils.UncompletedJobError)
assert patient.state == "CANCELLED"
executor.update_parameters(slurm_signal_delay_s=20)
counting = executor.submit(Counting(folder))
while not (folder / "first").exists():
    time.sleep(0.1)
print(counting.job_id, flush=True)
assert counting.result() == 2, "it goes on from what it saved, under the same number"
