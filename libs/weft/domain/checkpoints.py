"""Checkpoints of a job: how much work it loses when it is stopped, by how often its user says that it writes one, and
which files of its folder belong to a step."""

import re

from weft.domain.quantity import duration_seconds
from weft.domain.spec import JobSpec

CHECKPOINTS_LABEL = "weft/checkpoints"
"""The label with the time between two checkpoints, such as `10m`; `0s`: the job writes one when it is stopped.
The field `checkpoints` of the specification goes before it."""


def lost_seconds(spec: JobSpec) -> float | None:
    """The mean loss of a stop: half of the time between two checkpoints. None: the job writes none."""
    if spec.checkpoints is not None:
        every = spec.checkpoints.every
        return 0.0 if spec.checkpoints.on_stop or every is None else duration_seconds(every) / 2
    said = spec.labels.get(CHECKPOINTS_LABEL, "")
    try:
        return duration_seconds(said) / 2
    except ValueError:
        return None


_NUMBER = re.compile(r"[0-9]+")


def of_step(name: str, step: str) -> bool:
    """Return True if a file or folder at the top of a checkpoint folder belongs to this step: `500` is the step of
    `checkpoint-500`, `epoch=3-step=500.ckpt` and `500`, and a whole name is its own step."""
    if not step or name == step:
        return True
    stem, dot, ending = name.rpartition(".")
    numbers = _NUMBER.findall(stem if dot and stem and not ending.isdecimal() else name)
    return step.isdecimal() and bool(numbers) and int(numbers[-1]) == int(step)
