"""The day on real hardware: its report, on a driver for tests and a CUDA made of C; and without a GPU."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from math import inf
from pathlib import Path

import msgspec
import pytest

from tests.gpu.__main__ import REPORT, main
from tests.gpu.found import SkippedError
from tests.gpu.kit import LOCK, PACKAGES, locked
from tests.gpu.parts import PARTS, Machine
from tests.gpu.torch_parts import TORCH_PARTS
from tests.support.cuda_stub import build
from tests.support.fake_gpu import LIBRARY_NOT_FOUND, NOT_SUPPORTED, FakeGpu
from tests.support.fake_nvml import FakeNvml
from weft.domain.cluster import Gpu
from weft.gpus.inventory import inventory
from weft.messages.signals import NodeSampled
from weft.samples.benchmark_result import Measurement
from weftd.executor.preflight import Checked, LinksChecked

IF_THERE = ("setuptools",)  # other packages use them where they are installed
LITTLE = ("--seconds", "0.1", "--blocks", "4", "--rounds", "16", "--launches", "2", "--passes", "2", "--array-mib", "1")


async def passes(gpu: Gpu, slowdowns: str) -> Checked:
    del gpu, slowdowns
    measured = Measurement(
        compute_s=1.0, memory_s=1.0, compute_spread=0.01, memory_spread=0.01, reps=9, emulated=0.0, seconds=7.0
    )
    return Checked(measured=measured)


async def computes_wrong(gpu: Gpu, slowdowns: str) -> Checked:
    del gpu, slowdowns
    return Checked(failed="this GPU computes wrong")


async def no_links(gpus: Sequence[Gpu], slowdowns: str) -> LinksChecked:
    del gpus, slowdowns
    return LinksChecked()


async def wrong_links(gpus: Sequence[Gpu], slowdowns: str) -> LinksChecked:
    del gpus, slowdowns
    return LinksChecked(failed="the all-reduce is wrong")


NO_TORCH = "PyTorch cannot be imported here"


@contextmanager
def no_torch(gpu: Gpu) -> Iterator[None]:
    del gpu
    raise SkippedError(NO_TORCH)
    yield


class Day:
    def __init__(self, folder: Path, *gpus: FakeGpu, **machine: object) -> None:
        self.nvml = FakeNvml(list(gpus))
        self.folder = folder
        self.machine = replace_machine(
            Machine(inventory(self.nvml), folder, self.nvml, LITTLE, passes, lambda _: None, inf, no_torch, no_links),
            machine,
        )

    def report(self, *arguments: str) -> tuple[int, dict[str, dict[str, object]]]:
        out = io.StringIO()
        code = main(
            ["--minutes", "0.01", "--out", str(self.folder), *arguments], nvml=self.nvml, machine=self.machine, out=out
        )
        return code, json.loads((self.folder / REPORT).read_text())


def replace_machine(machine: Machine, fields: dict[str, object]) -> Machine:
    return msgspec.structs.replace(machine, **fields)


def test_without_a_gpu_it_says_so_and_measures_nothing(tmp_path: Path) -> None:
    out = io.StringIO()
    assert main(["--out", str(tmp_path / "no")], nvml=FakeNvml(init_fails=LIBRARY_NOT_FOUND), out=out) == 0
    assert out.getvalue() == "no NVIDIA GPU here: nothing was measured\n"
    assert not (tmp_path / "no").exists()


def test_every_part_is_in_the_report_with_the_name_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build(tmp_path)))
    fails = {"nvmlDeviceGetTemperature": NOT_SUPPORTED}
    day = Day(
        tmp_path, FakeGpu(uuid="GPU-" + "-".join("ab" * n for n in (4, 2, 2, 2, 6)), name="NVIDIA H200", fails=fails)
    )
    code, report = day.report()
    assert report["devices"] == ["NVIDIA H200"]
    assert list(report["parts"]) == list(PARTS)
    assert {part.get("skipped") for name, part in report["parts"].items() if name in TORCH_PARTS} == {NO_TORCH}
    whys = {name: part.get("why", "") for name, part in report["parts"].items()}
    assert (code, set(whys.values())) == (0, {""}), whys
    signals = report["parts"]["signals"]["found"]
    assert signals["not_given"]["0"]["nvmlDeviceGetTemperature"] == "Not Supported"
    assert report["parts"]["benchmark"]["found"]["0"]["times"] >= 1
    lines = (tmp_path / "session.jsonl").read_bytes().splitlines()
    assert len([msgspec.json.decode(line, type=NodeSampled) for line in lines]) >= 2


def test_a_gpu_that_fails_its_check_or_shows_a_sign_makes_the_report_fail(tmp_path: Path) -> None:
    sick = FakeGpu(uuid="GPU-1", ecc=(0, 1), ecc_volatile=1)
    code, report = Day(tmp_path, sick, check=computes_wrong).report("--only", "preflight", "--only", "session")
    assert code == 1
    assert report["parts"]["preflight"]["why"] == "GPU 0: this GPU computes wrong"
    assert "ecc-uncorrected" in str(report["parts"]["session"]["why"])


def test_links_that_are_wrong_make_the_report_fail(tmp_path: Path) -> None:
    code, report = Day(tmp_path, FakeGpu(uuid="GPU-1"), links=wrong_links).report("--only", "preflight")
    assert (code, report["parts"]["preflight"]["why"]) == (1, "the all-reduce is wrong")


def test_the_kit_has_the_packages_that_are_imported() -> None:
    """In a fresh process, as other tests import much more."""
    imports = "import sys, tests.gpu.__main__, weftd.arbiter.__main__"
    code = f"{imports}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    known = packages_distributions()
    found = {package.replace("_", "-") for module in said.split() for package in known.get(module, [])}
    assert found - {"weft-gpu", *IF_THERE} == set(PACKAGES)


def test_the_kit_takes_the_hashes_of_the_lock() -> None:
    lines = locked(LOCK.read_text(), PACKAGES)
    assert sum("==" in line for line in lines) == len(PACKAGES)
    assert any("--hash=sha256:" in line for line in lines)
    with pytest.raises(ValueError, match="no-such-package"):
        locked(LOCK.read_text(), ["no-such-package"])
