"""How much work a job loses when it is stopped, by how often its user says that it writes a checkpoint."""

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
