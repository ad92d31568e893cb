"""What the numbers that a job tells of its progress say about its end."""

from collections.abc import Mapping

FINISHED = "finished"  # `finished=1`: the work is done, whatever the steps say


def is_finished(progress: Mapping[str, float]) -> bool:
    """Does the job say that its work is done: by that word, or because its last step is behind it?"""
    steps = progress.get("steps", 0.0)
    return progress.get(FINISHED, 0.0) > 0 or (steps > 0 and progress.get("step", 0.0) >= steps)
