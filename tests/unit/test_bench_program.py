"""The benchmark's program: against a driver made of C, with what that driver may say, and as a stand-in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.support.cuda_stub import build
from weft.gpus.bench.__main__ import NOT_MEASURED
from weft.gpus.bench.kernels import COMPUTE, MEMORY, ComputeWork, MemoryWork, ptx, sum_of_chains
from weft.samples.benchmark_result import LinksMeasured, Measurement, measurement_of
from weftd.executor.logs.progress import pairs

CHIPS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
LITTLE = ("--seconds", "0.1", "--blocks", "4", "--rounds", "16", "--launches", "2", "--passes", "2", "--array-mib", "1")
UUID = "GPU-" + "-".join("ab" * count for count in (4, 2, 2, 2, 6))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


def _packages() -> dict[str, str]:
    """Where this checkout's packages are, if that is not where they are installed."""
    return {"PYTHONPATH": path} if (path := os.environ.get("PYTHONPATH")) else {}


class Ran:
    def __init__(self, tmp_path: Path, arguments: tuple[str, ...], env: dict[str, str]) -> None:
        told = tmp_path / "progress"
        done = subprocess.run(
            [sys.executable, "-m", "weft.gpus.bench", *arguments],
            env={"PATH": os.environ["PATH"], **_packages(), "WEFT_PROGRESS": str(told), **env},
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=60,
        )
        assert done.stderr == ""
        self.status, self.lines = done.returncode, done.stdout.splitlines()
        self.told = told.read_text() if told.exists() else ""

    @property
    def measurement(self) -> Measurement:
        """As an executor reads it, and the scorer what that stored."""
        found = measurement_of(pairs(self.told))
        assert found is not None, self.lines
        return found


def on(driver: Path, tmp_path: Path, *arguments: str, **env: str) -> Ran:
    return Ran(tmp_path, arguments or LITTLE, {"LD_LIBRARY_PATH": str(driver), **env})


def test_a_gpu_is_measured_through_its_driver(driver: Path, tmp_path: Path) -> None:
    ran = on(driver, tmp_path, CUDA_VISIBLE_DEVICES=UUID)
    assert ran.status == 0, ran.lines
    found = ran.measurement
    assert found.emulated == 0
    assert 0 < found.compute_s < 1
    assert 0 < found.memory_s < 1
    assert found.reps >= 3
    assert found.seconds >= 0.175
    assert f"Stub ({UUID}, compute capability 9.0)" in "\n".join(ran.lines)
    assert (found.clock_mhz, found.power_w) == (None, None), "no NVML here, so nothing is told of clocks"


def links(driver: Path, tmp_path: Path, **env: str) -> Ran:
    return on(driver, tmp_path, "--links", "--link-mib", "1", STUB_GPUS="3", **env)


def test_the_links_of_all_gpus_are_measured(driver: Path, tmp_path: Path) -> None:
    ran = links(driver, tmp_path)
    assert ran.status == 0, ran.lines
    found = msgspec.json.decode(ran.lines[-1], type=LinksMeasured)
    assert list(found.copies) == [UUID[:-2] + last for last in ("ab", "ac", "ad")]
    assert found.all_reduce_s is not None
    assert 0 < found.all_reduce_s < 1


def test_an_all_reduce_that_loses_a_part_is_wrong(driver: Path, tmp_path: Path) -> None:
    ran = links(driver, tmp_path, STUB_LOSES="1")
    assert (ran.status, ran.lines[-1].split(":")[0]) == (1, "the all-reduce is wrong")


def test_more_work_takes_longer(driver: Path, tmp_path: Path) -> None:
    less = on(driver, tmp_path).measurement
    more = on(driver, tmp_path, *("--rounds", "160", *LITTLE[:4], *LITTLE[6:])).measurement
    assert more.compute_s > 3 * less.compute_s


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"STUB_FAILS": "cuInit:100"}, "cuInit: CUDA_ERROR_STUB (100): as the stub was told"),
        ({"STUB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "GPU-1"}, "shows no GPU here (CUDA_VISIBLE_DEVICES=GPU-1)"),
        ({"STUB_FAILS": "cuMemAlloc_v2:2"}, "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"),
        ({"STUB_FAILS": "cuModuleLoadDataEx:218"}, "ptxas error: line 1: not for this chip"),
        ({"STUB_FAILS": "cuModuleGetFunction:500"}, "cuModuleGetFunction: "),
        ({"STUB_FAILS": "cuLaunchKernel:719"}, "cuLaunchKernel: "),
        ({"STUB_FAILS": "cuEventSynchronize:999"}, "cuEventSynchronize: "),
        ({"STUB_FAILS": "cuMemcpyHtoD_v2:700"}, "cuMemcpyHtoD_v2: "),
        ({"STUB_FREE": "1000"}, "needs 3149824 bytes of GPU memory, and 1000 are free"),
        ({"STUB_WRONG": "1"}, "this GPU computes wrong: compute 0 is "),
        ({"CUDA_VISIBLE_DEVICES": "GPU-12345678"}, f"names GPU-12345678, and the driver shows {UUID}"),
    ],
)
def test_what_the_driver_refuses_is_said_in_one_line_and_nothing_is_told(
    driver: Path, tmp_path: Path, env: dict[str, str], why: str
) -> None:
    ran = on(driver, tmp_path, **env)
    assert ran.status == (NOT_MEASURED if env.keys() & {"STUB_GPUS", "STUB_FREE", "CUDA_VISIBLE_DEVICES"} else 1)
    assert why in ran.lines[-1]
    assert ran.told == ""


def test_a_driver_that_is_too_old_is_said_to_be_so(tmp_path: Path) -> None:
    ran = on(build(tmp_path, without="cuDeviceGetUuid"), tmp_path)
    assert (ran.status, ran.lines) == (NOT_MEASURED, ["this driver is too old: it has no cuDeviceGetUuid"])


def test_no_driver_at_all_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("not a library")
    ran = Ran(tmp_path, LITTLE, {"LD_LIBRARY_PATH": str(tmp_path)})
    assert ran.status == NOT_MEASURED
    assert len(ran.lines) == 1
    assert ran.lines[0].startswith("no NVIDIA driver here: ")


@pytest.mark.parametrize("kernel", [COMPUTE, MEMORY])
@pytest.mark.parametrize("chip", CHIPS)
def test_a_kernel_assembles_for_every_chip(kernel: str, chip: str, tmp_path: Path) -> None:
    assembler = shutil.which("ptxas")
    if assembler is None:
        pytest.skip("no ptxas here; the driver itself compiles the kernels")
    text = tmp_path / "kernel.ptx"
    text.write_bytes(ptx(kernel).rstrip(b"\0"))
    done = subprocess.run([assembler, "-arch", chip, str(text), "-o", str(tmp_path / "out")], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_work_is_fixed_and_fills_any_chip() -> None:
    assert ComputeWork().operations == 2**44
    assert ComputeWork().blocks * ComputeWork().threads >= 10 * 200 * 2048, "ten times what 200 multiprocessors hold"
    assert MemoryWork().array_bytes >= 2 * 128 * 2**20, "twice the largest cache"
    assert MemoryWork().blocks * MemoryWork().threads == MemoryWork().quads
    assert (MemoryWork(array_bytes=16 * 257).blocks, MemoryWork(array_bytes=16 * 257).quads) == (2, 257)


def test_the_chains_go_on_changing_for_as_long_as_a_repetition() -> None:
    """None settles, and none runs away: then one more round would not make another sum, or not a finite one."""
    rounds = ComputeWork().rounds
    sums = {sum_of_chains(0, rounds=rounds - less) for less in range(4)}
    assert len(sums) == 4
    assert all(abs(each) < 16 for each in sums)


# emulated


def emulated(tmp_path: Path, slowdown: str = "1", *, seconds: str = "1.2") -> Measurement:
    folder = tmp_path / "emulated"
    folder.mkdir(exist_ok=True)
    (folder / "2").write_text(slowdown)
    env = {"WEFT_GPUS_EMULATED": "1", "WEFT_GPUS": "2", "WEFT_EMULATED_SLOWDOWNS": str(folder)}
    ran = Ran(tmp_path, ("--seconds", seconds), env)
    assert (ran.status, "emulated" in ran.lines[0]) == (0, True), ran.lines
    return ran.measurement


def test_an_emulated_gpu_is_called_so_and_is_as_slow_as_its_file_says(tmp_path: Path) -> None:
    normal, slow = emulated(tmp_path), emulated(tmp_path, "2")
    assert (normal.emulated, slow.emulated) == (1, 1)
    assert slow.compute_s / normal.compute_s == pytest.approx(2, rel=0.1)
    assert slow.memory_s / normal.memory_s == pytest.approx(2, rel=0.2)
    assert slow.reps <= normal.reps, "and its work really takes longer"
