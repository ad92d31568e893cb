"""Submitit's executor on Weft: `submitit.AutoExecutor(folder, cluster="weft")`.

Submitit finds it as an entry point. As with Slurm, the folder and the interpreter are the same here and on the nodes.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any, TypeVar, cast

from submitit.core import core
from submitit.core.job_environment import JobEnvironment

import weft
from weft.client.calls import python_path
from weft.client.job_fields import JobFields
from weft.client.job_name import token
from weft.domain.job import FINAL, JobState

R = TypeVar("R")

JOBS_MAX = 1000  # in one answer
OWN = {"nodes", "tasks_per_node", "gpus_per_node", "cpus_per_task", "mem_gb", "name", "timeout_min", "stderr_to_stdout"}
STATES = {
    JobState.QUEUED: "PENDING",
    JobState.PLACED: "PENDING",
    JobState.STARTING: "PENDING",
    JobState.RUNNING: "RUNNING",
    JobState.STOPPING: "COMPLETING",
    JobState.SUCCEEDED: "COMPLETED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "CANCELLED",
}


class WeftWatcher(core.InfoWatcher):  # type: ignore[misc]
    """The states of all jobs of this program that are not over, by one request."""

    def update(self) -> None:
        waiting = self._registered - self._finished
        active = [state for state in JobState if state not in FINAL]
        found = {job.id: job for job in weft.jobs(states=active, limit=JOBS_MAX)}
        for job_id in waiting:
            job = found.get(job_id) or weft.Job.find(job_id)
            self._info_dict[job_id] = {"JobID": job_id, "State": STATES[job.state]}
            if job.state in FINAL:
                self._finished.add(job_id)
        self._last_status_check = time.time()

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        return str(self.get_info(job_id, mode).get("State", "UNKNOWN"))


class WeftJob(core.Job[R]):  # type: ignore[misc]
    """`stdout` and `stderr` are the same: the log of the task, which has both in the order of their lines."""

    watcher = WeftWatcher()

    def cancel(self, check: bool = True) -> None:
        weft.Job.find(self.job_id).cancel()

    def _get_logs_string(self, name: str) -> str | None:
        try:
            return "\n".join(weft.Job.find(self.job_id).logs(rank=self.task_id or 0))
        except weft.Refused:  # no node has a log of it
            return None


class WeftJobEnvironment(JobEnvironment):  # type: ignore[misc]
    _env = {  # noqa: RUF012 -- as Submitit has it
        "job_id": "WEFT_JOB_ID",
        "num_tasks": "WEFT_WORLD_SIZE",
        "global_rank": "WEFT_RANK",
        "num_nodes": "SUBMITIT_WEFT_NODES",
        "node": "SUBMITIT_WEFT_NODE",
        "local_rank": "LOCAL_RANK",
    }

    def _requeue(self, countdown: int) -> None:
        """Weft puts a job that it pre-empted back into the queue itself."""


class WeftExecutor(core.PicklingExecutor):  # type: ignore[misc]
    """Tasks are the replicas of one job: `nodes` times `tasks_per_node`. The other parameters of Submitit have their
    own meaning, and `weft_NAME` is the field NAME of a job file, such as `weft_priority=10`.

    A job that is pre-empted gets SIGUSR2, at which Submitit saves what has a `checkpoint`, and is tried again.
    """

    job_class = WeftJob

    def __init__(self, folder: str | Path, max_num_timeout: int = 3, max_pickle_size_gb: float = 1.0) -> None:
        super().__init__(folder, max_num_timeout=max_num_timeout, max_pickle_size_gb=max_pickle_size_gb)
        self._throttling = 0.0  # the gateway has limits of its own

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return set(JobFields.__annotations__)

    def _num_tasks(self) -> int:
        return int(self.parameters.get("nodes") or 1) * int(self.parameters.get("tasks_per_node") or 1)

    def _submit_command(self, command: str) -> WeftJob[Any]:
        job = weft.run([sys.executable, "-u", "-m", "submitit.core._submit", str(self.folder)], **self._fields())
        return WeftJob(folder=self.folder, job_id=job.id, tasks=list(range(self._num_tasks())))

    def _fields(self) -> JobFields:
        """Raises ValueError for GPUs that cannot be divided among the tasks."""
        given = {name: value for name, value in self.parameters.items() if name in OWN and value is not None}
        tasks = int(given.get("tasks_per_node", 1))
        gpus = int(given.get("gpus_per_node", 0))
        if gpus % tasks:
            raise ValueError(f"gpus_per_node must be a multiple of tasks_per_node, got {gpus} and {tasks}")
        fields: dict[str, Any] = {"gpus": gpus // tasks, "replicas": self._num_tasks(), "stop_signal": "SIGUSR2"}
        if "cpus_per_task" in given:
            fields["cpus"] = given["cpus_per_task"]
        if "mem_gb" in given:
            fields["memory"] = f"{int(given['mem_gb'] * 1024 / tasks)}MiB"
        if "timeout_min" in given:
            fields["time_limit"] = f"{max(1, int(given['timeout_min'] * 60))}s"
        fields["name"] = token(str(given.get("name", ""))) or "submitit"
        fields |= {name: value for name, value in self.parameters.items() if name not in OWN and value is not None}
        own = {
            "PYTHONPATH": python_path(),
            "SUBMITIT_EXECUTOR": "weft",
            "SUBMITIT_WEFT_NODES": str(given.get("nodes", 1)),
        }
        kept = {name: os.environ[name] for name in ("SUBMITIT_PREEMPT_SIGNAL",) if name in os.environ}
        fields["env"] = {**own, **kept, **fields.get("env", {})}
        return cast(JobFields, fields)

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        raise NotImplementedError("Weft needs no file")

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        raise NotImplementedError("Weft needs no command")

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        raise NotImplementedError("Weft needs no command")
