"""Where the measured data are that some tests read."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def measured(name: str) -> Path:
    """A file or folder of the data folder; the test is skipped where there is no such folder."""
    folder = ROOT / os.environ.get("WEFT_DATA", "../shared/data")
    if not folder.is_dir():
        pytest.skip("no measured data here: WEFT_DATA names no folder")
    return folder / name
