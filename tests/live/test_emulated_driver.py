"""The emulated driver in real processes: time and memory of one device, shared through its file."""

import os
import time
from pathlib import Path

import pytest

from tests.support.compiled import Built, build
from tests.support.scripted_arbiter import environment, output, program
from weft.emulation.device import read_device
from weft.emulation.slowdowns import slow_down
from weft.sharing.native import NotBuilt

COMPILED = build()
MIB = 1 << 20

pytestmark = pytest.mark.skipif(isinstance(COMPILED, NotBuilt), reason=getattr(COMPILED, "reason", "compiled"))


def environ(device: Path, **more: str) -> dict[str, str]:
    assert isinstance(COMPILED, Built)
    return {**os.environ, **environment(COMPILED, device), **more}


def test_it_says_that_it_is_emulated(tmp_path: Path) -> None:
    text = """
d = Driver(); name = ctypes.create_string_buffer(64)
d.check("cuDeviceGetName", name, c_int(64), c_int(0)); print(name.value.decode())
"""
    assert "emulated" in output(program(text, environ(tmp_path)))


@pytest.mark.alone
def test_kernels_take_the_time_that_they_say_and_events_measure_it(tmp_path: Path) -> None:
    text = """
d = Driver(); begun = time.monotonic(); first = d.event()
for _ in range(50): d.launch(2000)
last = d.event(); launched = time.monotonic() - begun
d.synchronize(); print(launched, time.monotonic() - begun, d.elapsed_ms(first, last))
"""
    launched, done, measured = map(float, output(program(text, environ(tmp_path))).split())
    assert launched < 0.09
    assert 0.1 <= done < 2.0
    assert measured == pytest.approx(100, rel=0.3)
    device = read_device(tmp_path)
    assert (device.busy_ns, device.kernels) == (100_000_000, 50)


@pytest.mark.alone
def test_two_processes_take_turns_on_one_device(tmp_path: Path) -> None:
    """Each takes about twice as long as alone: neither waits for the other to end."""
    text = """
d = Driver(); begun = float(sys.stdin.readline()); time.sleep(begun - time.monotonic())
for _ in range(300): d.launch(2000)
d.synchronize(); print(time.monotonic() - begun)
"""
    jobs = [program(text, environ(tmp_path)) for _ in range(2)]
    begun = time.monotonic() + 1.5
    for job in jobs:
        assert job.stdin is not None
        job.stdin.write(f"{begun}\n")
        job.stdin.flush()
    took = [float(output(job)) for job in jobs]
    assert max(took) >= 1.2
    assert min(took) >= 0.8
    device = read_device(tmp_path)
    assert [process.busy_ns for process in device.processes] == [600_000_000, 600_000_000]


@pytest.mark.alone
def test_a_killed_process_blocks_no_other_and_its_memory_comes_back(tmp_path: Path) -> None:
    hog = program(
        "d = Driver(); d.allocate(12 << 20); d.launch(60_000_000); print(flush=True); time.sleep(60)",
        environ(tmp_path, WEFT_EMULATED_MEMORY=str(16 * MIB)),
    )
    assert hog.stdout is not None
    hog.stdout.readline()
    text = """
d = Driver(); print(d.allocate(8 << 20) is None, flush=True); sys.stdin.readline()
print(d.allocate(8 << 20) is not None)
begun = time.monotonic()
for _ in range(10): d.launch(2000)
d.synchronize(); print(time.monotonic() - begun < 1)
"""
    other = program(text, environ(tmp_path))
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    hog.kill()
    hog.communicate()
    out, _ = other.communicate("\n", timeout=30)
    assert out.split() == ["True", "True"]
    assert read_device(tmp_path).memory == 16 * MIB


@pytest.mark.alone
def test_a_slowdown_holds_from_now_on(tmp_path: Path) -> None:
    (tmp_path / "slowdowns").mkdir()
    (tmp_path / "device").mkdir()
    text = """
d = Driver()
def took():
    first = d.event()
    for _ in range(20): d.launch(2000)
    last = d.event(); d.synchronize(); return d.elapsed_ms(first, last)
print(took(), flush=True); sys.stdin.readline(); print(took())
"""
    job = program(text, environ(tmp_path / "device", WEFT_EMULATED_SLOWDOWNS=str(tmp_path / "slowdowns")))
    assert job.stdout is not None
    before = float(job.stdout.readline())
    slow_down(tmp_path / "slowdowns", 0, 2.0)
    time.sleep(0.1)
    out, _ = job.communicate("\n", timeout=30)
    assert float(out) / before == pytest.approx(2.0, rel=0.3)


def test_copies_and_sets_are_real(tmp_path: Path) -> None:
    text = """
d = Driver(); at = d.allocate(4096); back = ctypes.create_string_buffer(8)
d.check("cuMemsetD8_v2", at, ctypes.c_ubyte(7), c_size_t(4096))
d.check("cuMemcpyHtoD_v2", at, b"weft", c_size_t(4))
d.check("cuMemcpyDtoH_v2", back, at, c_size_t(8)); print(back.raw)
other = d.allocate(4096)
d.check("cuMemcpyDtoDAsync_v2", other, at, c_size_t(8), None); d.synchronize()
d.check("cuMemcpyDtoH_v2", back, other, c_size_t(4)); print(back.raw[:4])
"""
    assert output(program(text, environ(tmp_path))).split() == ["b'weft\\x07\\x07\\x07\\x07'", "b'weft'"]


def test_an_unsafe_call_breaks_a_capture_as_it_does_on_hardware(tmp_path: Path) -> None:
    text = """
d = Driver(); stream, graph = d.stream(), c_void_p(); event = d.event()
d.check("cuStreamBeginCapture_v2", stream, c_int(0)); d.launch(1000, stream)
print(d.call("cuEventQuery", event), d.call("cuStreamEndCapture", stream, byref(graph)))
"""
    assert output(program(text, environ(tmp_path))).split() == ["900", "901"]


def test_without_a_device_folder_there_is_no_device(tmp_path: Path) -> None:
    plain = environ(tmp_path)
    del plain["WEFT_EMULATED_DEVICE"]
    text = "print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    assert output(program(text, plain)) == "100\n"
    assert output(program(text, environ(tmp_path / "none"))) == "100\n"


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"x" * (128 + 1024 * 128)])
def test_a_device_file_with_anything_in_it_is_no_device(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "device-0").write_bytes(content)
    text = "print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    assert output(program(text, environ(tmp_path))) == "100\n"
