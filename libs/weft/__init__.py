"""Weft shares a cluster of GPUs among jobs. This is its Python interface.

    job = weft.run("python train.py", gpus=1)
    for line in job.logs(follow=True):
        print(line)
    job.result()

`weft.aio` has the same names for programs with an event loop. Inside a job, `step`, `metric`, `should_stop`,
`checkpoint_dir`, `results_dir`, `rank` and `members` need nothing but Python's standard library. docs/python.md
explains all of it.

The names in `__all__` and those of `weft.aio` are public, every other module is private. A name is imported when it is
first used, so that `import weft` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from weft import aio
    from weft.aio.tuner import Tuner
    from weft.blocking import Cluster, Job, Service, Study, as_completed, jobs, run, serve, submit
    from weft.client import Client, ClientError, Gap, Refused, Unreachable
    from weft.client.job_failed import JobFailed
    from weft.executor import Executor
    from weft.functions import Function, function
    from weft.inside import Member, members, metric, rank, should_stop, step
    from weft.messages.files import JobFile
    from weft.messages.metrics import MetricsView

    __version__: str
    checkpoint_dir: Path
    results_dir: Path

__all__ = [
    "Client",
    "ClientError",
    "Cluster",
    "Executor",
    "Function",
    "Gap",
    "Job",
    "JobFailed",
    "JobFile",
    "Member",
    "MetricsView",
    "Refused",
    "Service",
    "Study",
    "Tuner",
    "Unreachable",
    "__version__",
    "aio",
    "as_completed",
    "checkpoint_dir",
    "function",
    "jobs",
    "members",
    "metric",
    "rank",
    "results_dir",
    "run",
    "serve",
    "should_stop",
    "step",
    "submit",
]

_HOMES = {
    **dict.fromkeys(("Client", "ClientError", "Gap", "Refused", "Unreachable"), "weft.client"),
    **dict.fromkeys(
        ("Cluster", "Job", "Service", "Study", "as_completed", "jobs", "run", "serve", "submit"), "weft.blocking"
    ),
    **dict.fromkeys(("Function", "function"), "weft.functions"),
    **dict.fromkeys(("Member", "members", "metric", "rank", "should_stop", "step"), "weft.inside"),
    "Executor": "weft.executor",
    "JobFailed": "weft.client.job_failed",
    "JobFile": "weft.messages.files",
    "Tuner": "weft.aio.tuner",
    "MetricsView": "weft.messages.metrics",
}
"""The module of each name that is the same object all the time."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("weft.version").version()
    if name in ("checkpoint_dir", "results_dir"):
        return getattr(import_module("weft.inside"), name)()
    if name == "aio":
        return import_module("weft.aio")
    if name in _HOMES:
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
