"""Makes docs/python-reference.md from the signatures and the docstrings of `weft`."""

import inspect
import re
from typing import Any

import weft
from tests.support.public import is_ours, signature
from weft import inside

SECTIONS = {
    "Submit and find jobs": ("submit", "run", "serve", "jobs", "as_completed", "Cluster"),
    "Functions": ("function", "Function", "Executor", "Tuner"),
    "Jobs and their results": ("Job", "Service", "Study", "JobFile", "MetricsView"),
    "Errors": ("JobFailed", "ClientError", "Refused", "Unreachable"),
    "Inside a job": ("step", "metric", "should_stop", "checkpoint_dir", "results_dir", "rank", "members", "Member"),
    "The client underneath": ("Client", "Gap"),
}
WITHOUT_MEMBERS = frozenset({"Client"})  # one method for each request of the API
_HEAD = """# Reference of `import weft`

Made from the code by `python -m tests.support.reference`; a test holds it to the code. [python.md](python.md) is the
tutorial. Times are in seconds. A call that asks the cluster raises `Refused` if the gateway refuses it, `Unreachable`
if no gateway answers in time, and `ClientError` if no cluster is known. `weft.aio` has the same names, as coroutines
and asynchronous iterators.

`fields` are those of a [job file](job-file.md), except for arrays and sweeps. The fields of the one role, `worker`,
stand beside them: `replicas`, `gpus`, `share`, `cpus`, `memory`, `shm`, `egress`. A number stands for
`replicas: {want: N}` and `retries: {max: N}`. `patience` is how long a wait goes on while no gateway answers; then it
raises `Unreachable`, and the job goes on.
"""
_MODULES = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])|~")


def python_reference() -> str:
    """The page."""
    parts = [_HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name) for name in names]
    return "\n".join(parts)


def _entry(name: str) -> str:
    value = getattr(inside, name) if name in ("checkpoint_dir", "results_dir") else getattr(weft, name)
    heading = f"### `{name}`\n"
    if name in ("checkpoint_dir", "results_dir"):
        return f"{heading}\n{_told(value)}\n"
    called = f"\n```python\n{name}{_short(signature(value))}\n```\n" if inspect.isfunction(value) else ""
    lines = [f"{heading}{called}\n{_told(value)}\n"]
    if inspect.isclass(value) and name not in WITHOUT_MEMBERS and (rows := _members(value)):
        lines += ["| | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _members(kind: type) -> list[str]:
    """A row for each public method and property with a docstring."""
    rows: list[str] = []
    for name, value in inspect.getmembers(kind):
        if name.startswith("_") or not is_ours(kind, name) or not (told := _told(value)):
            continue
        is_called = inspect.isfunction(value) or inspect.ismethod(value)
        text = f"{name}{_short(signature(value))}" if is_called else name
        cells = (f"`{text.replace('(self, ', '(').replace('(self)', '()')}`", told)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return rows


def _short(text: str) -> str:
    return re.sub(r"'([A-Z][^']*)'", r"\1", _MODULES.sub("", text))


def _told(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").split())
