"""A program of a person who uses Submitit: its folder is the argument."""

import os
import sys

import submitit


def add(a: int, b: int) -> int:
    print("adds", a, b)
    return a + b


def fail() -> None:
    raise ValueError("no luck")


def rank() -> tuple[int, int, str]:
    found = submitit.JobEnvironment()
    return found.global_rank, found.num_tasks, os.environ["GREETING"]


executor = submitit.AutoExecutor(folder=sys.argv[1], cluster="weft")
executor.update_parameters(cpus_per_task=1, timeout_min=2, name="by submitit", weft_labels={"team": "vision"})
job = executor.submit(add, 5, 7)
assert job.result() == 12
assert "adds 5 7" in (job.stdout() or "")
assert [one.result() for one in executor.map_array(add, [1, 2], [10, 20])] == [11, 22]
failing = executor.submit(fail)
assert "ValueError: no luck" in str(failing.exception())
assert failing.watcher.is_done(failing.job_id, mode="force")
executor.update_parameters(tasks_per_node=2, gpus_per_node=2, weft_env={"GREETING": "hello"})
assert executor.submit(rank).results() == [(0, 2, "hello"), (1, 2, "hello")]
executor.update_parameters(tasks_per_node=1, gpus_per_node=0)
patient = executor.submit(__import__("time").sleep, 600)
patient.cancel()
assert isinstance(patient.exception(), submitit.core.utils.UncompletedJobError)
print(job.job_id, patient.state)
