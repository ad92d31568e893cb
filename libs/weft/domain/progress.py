"""Whether a job's progress shows that its work is done."""

from collections.abc import Mapping

FINISHED = "finished"  # `finished=1`: the work is done, whatever the steps are


def is_finished(progress: Mapping[str, float]) -> bool:
    """Whether the job has reported its work as done: by that name, or by its last step."""
    steps = progress.get("steps", 0.0)
    return progress.get(FINISHED, 0.0) > 0 or (steps > 0 and progress.get("step", 0.0) >= steps)
