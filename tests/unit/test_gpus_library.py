"""A real shared library where the driver's would be, compiled here: the binding loads it as it loads the driver's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("nvml_stub.c")

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to compile the library with")

# Reads three times in one process and prints the samples of each as JSON.
READ = """
import json, sys
import msgspec
from weft.gpus import inventory
from weft.gpus.source import DriverSource
found = inventory()
source = DriverSource(found)
source.open()
print(json.dumps([msgspec.to_builtins(source.read()) for _ in range(3)]))
"""


def python(tmp_path: Path, *arguments: str, **environ: str) -> str:
    """What Python prints with the library where the driver's would be."""
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, SOURCE], check=True, timeout=60)
    ended = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path), **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def read(tmp_path: Path, **environ: str) -> list[list[dict[str, object]]]:
    readings: list[list[dict[str, object]]] = json.loads(python(tmp_path, "-c", READ, **environ))
    return readings


@needs_gcc
def test_a_library_with_few_functions_is_loaded_and_read(tmp_path: Path) -> None:
    for samples in read(tmp_path):
        assert [sample["uuid"] for sample in samples] == ["GPU-stub-0", "GPU-stub-1"]
        for index, sample in enumerate(samples):
            assert sample["model"] == "Stub GPU"
            assert sample["utilisation"] == (40 + index) / 100
            assert sample["memory_used"] == (3 + index) << 30
            assert sample["power_watts"] == 123.456
            assert (sample.get("temperature"), sample.get("problem")) == (None, None), "it has no such functions"
            assert sample["provider"] == "fake", "it says so itself"


@needs_gcc
def test_a_library_whose_gpu_is_lost_after_some_calls_goes_on_with_the_other(tmp_path: Path) -> None:
    first, *_, last = read(tmp_path, STUB_LOST_AFTER="4")
    assert first[0]["utilisation"] == 0.4
    assert (last[0].get("problem"), last[0].get("utilisation")) == ("GPU is lost", None)
    assert (last[1].get("problem"), last[1]["utilisation"]) == (None, 0.41)


@needs_gcc
def test_the_library_is_checked_from_the_command_line(tmp_path: Path) -> None:
    table = python(tmp_path, "-m", "tests.support.gpu_check", "--period", "0.1")
    assert "  power_watts                123.456\n" in table
    assert "  temperature                -\n" in table
    assert "  nvmlDeviceGetTemperature: Function Not Found\n" in table
