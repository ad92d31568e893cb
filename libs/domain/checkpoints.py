"""How much work a job loses when it is stopped: only its user knows how often it writes down where it is."""

from libs.domain.quantity import duration_seconds
from libs.domain.spec import JobSpec

CHECKPOINTS_LABEL = "weft/checkpoints"
"""How often it writes a checkpoint, such as `10m`; `0s`: at the latest when it is told to stop."""


def lost_seconds(spec: JobSpec) -> float | None:
    """What a stop loses on average: half of the time between two checkpoints. None: nobody said that it writes any."""
    said = spec.labels.get(CHECKPOINTS_LABEL, "")
    try:
        return duration_seconds(said) / 2
    except ValueError:
        return None
