"""The slowdown of each emulated GPU: a file in the executor's folder, which a person may write at any time.

`emulated/3` with `1.33` in it: GPU 3 of that node takes 1.33 times as long as a healthy GPU; without a file the
slowdown is 1. A run on emulated GPUs finds the folder as WEFT_EMULATED_SLOWDOWNS and the indexes of its GPUs as
WEFT_GPUS, and slows itself down: there is no hardware that would.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "WEFT_EMULATED_SLOWDOWNS"
GPUS_VARIABLE = "WEFT_GPUS"
SLOWDOWN_MIN, SLOWDOWN_MAX = 0.1, 100.0
_TEXT_BYTES_MAX = 64


def slowdown_of(folder: str | Path, indexes: Iterable[int]) -> float:
    """Read the slowdown of the slowest of these GPUs; 1.0 without GPUs. An invalid file counts as 1.0 and is logged."""
    return max((_read(Path(folder) / str(index)) for index in indexes), default=1.0)


def slowdown_here(environ: Mapping[str, str]) -> float:
    """Read the slowdown of the slowest GPU of the run with this environment."""
    folder = environ.get(FOLDER_VARIABLE, "")
    indexes = [int(index) for index in environ.get(GPUS_VARIABLE, "").split(",") if index.isdecimal()]
    return slowdown_of(folder, indexes) if folder else 1.0


def slow_down(folder: str | Path, index: int, slowdown: float) -> None:
    """Set the slowdown of a GPU from now on. Raises ValueError and OSError."""
    _check(slowdown)
    path = Path(folder) / str(index)
    unfinished = path.with_name(f".{index}.unfinished")
    unfinished.write_text(f"{slowdown:g}\n")
    unfinished.chmod(0o644)  # the user of a container reads it, too
    unfinished.replace(path)


def _read(path: Path) -> float:
    try:
        with path.open("rb") as file:
            text = file.read(_TEXT_BYTES_MAX).decode(errors="replace").strip()
    except FileNotFoundError:
        return 1.0
    except OSError as error:
        _complain(str(path), error.strerror or str(error))
        return 1.0
    try:
        return _check(float(text))
    except ValueError as error:
        _complain(str(path), str(error))
        return 1.0


def _check(slowdown: float) -> float:
    if not (math.isfinite(slowdown) and SLOWDOWN_MIN <= slowdown <= SLOWDOWN_MAX):
        raise ValueError(f"expected a number from {SLOWDOWN_MIN:g} to {SLOWDOWN_MAX:g}, got {slowdown:g}")
    return slowdown


@lru_cache(maxsize=256)
def _complain(path: str, why: str) -> None:
    """Log each problem once: the file is read at every step of a job."""
    logger.warning("%s is not a slowdown and counts as 1: %s", path, why)
