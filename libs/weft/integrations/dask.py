"""Dask on Weft: a cluster of Dask whose workers are jobs, one each."""

import sys
from typing import Any, Unpack

from distributed import Scheduler
from distributed.deploy.spec import ProcessInterface, SpecCluster

import weft
from weft.client.calls import python_path
from weft.client.job_fields import JobFields


class WeftWorker(ProcessInterface):  # type: ignore[misc]
    """A job that runs one worker. It ends by itself once its scheduler is gone for a minute."""

    def __init__(self, scheduler: str, name: str | int, fields: JobFields) -> None:
        super().__init__(scheduler=scheduler, name=name)
        self._scheduler, self._name, self._fields = scheduler, name, fields
        self.job: weft.aio.Job[None] | None = None

    async def start(self) -> None:
        fields = JobFields(**{"name": "dask-worker", **self._fields})
        python = "python3" if fields.get("image") else sys.executable
        words = ["-m", "distributed.cli.dask_worker", self._scheduler, "--name", str(self._name)]
        words += ["--nthreads", str(max(1, int(fields.get("cpus", 1)))), "--death-timeout", "60", "--no-nanny"]
        own = {} if fields.get("image") else {"PYTHONPATH": python_path()}
        fields["env"] = {**own, **fields.get("env", {})}
        self.job = await weft.aio.run([python, *words, "--no-dashboard"], **fields)
        await super().start()

    async def close(self) -> None:
        if self.job is not None:
            await self.job.cancel()
        await super().close()


class WeftCluster(SpecCluster):  # type: ignore[misc]
    """A scheduler here, at `host`, which the nodes reach, and `n_workers` jobs with these fields of a job file.

    `scale(n)` and `adapt(…)` change how many there are, as with every cluster of Dask.
    """

    def __init__(
        self, n_workers: int = 0, *, host: str = "", asynchronous: bool = False, **fields: Unpack[JobFields]
    ) -> None:
        worker: dict[str, Any] = {"cls": WeftWorker, "options": {"fields": fields}}
        scheduler = {"cls": Scheduler, "options": {"host": host or None, "dashboard": False}}
        super().__init__(
            workers=dict.fromkeys(range(n_workers), worker),
            scheduler=scheduler,
            worker=worker,
            asynchronous=asynchronous,
            name="weft",
        )
