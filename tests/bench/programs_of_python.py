"""The function that `python -m tests.bench python` runs as jobs."""

import weft


@weft.function(cpus=0.1)
def nothing(number: int) -> int:
    return number
