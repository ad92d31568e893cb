"""The check of a driver prints which values it gives; a driver that is away or hangs is one sentence."""

import io

import pytest

from tests.support.fake_gpu import DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, NOT_SUPPORTED, FakeGpu
from tests.support.fake_nvml import FakeNvml
from tests.support.gpu_check import main
from tests.support.hung_driver import a_driver_that_hangs


def checked(nvml: FakeNvml) -> tuple[int, str]:
    said = io.StringIO()
    code = main([], nvml=nvml, out=said, sleep=lambda _: None)
    return code, said.getvalue()


def test_the_check_tells_which_values_the_driver_gives_and_why_not() -> None:
    fails = {"nvmlDeviceGetTemperature": NOT_SUPPORTED}
    code, said = checked(FakeNvml([FakeGpu(uuid="GPU-0", utilisation=50, fails=fails), FakeGpu(uuid="GPU-1")]))
    assert code == 0
    first, _, second = said.partition("GPU 1  ")
    values = dict(line.split(maxsplit=1) for line in first.splitlines() if line.startswith("  "))
    assert (values["utilisation"], values["temperature"], values["power_watts"]) == ("0.5", "-", "75.0")
    assert values["nvmlDeviceGetTemperature:"] == "Not Supported"
    assert "provider fake, driver 570.86.15" in first
    assert "nvmlDeviceGetTemperature" not in second
    assert "GPUs 0 and 1: single" in said


def test_the_check_says_when_there_is_nothing_to_check() -> None:
    code, said = checked(FakeNvml(init_fails=LIBRARY_NOT_FOUND))
    assert code == 1
    assert said.startswith("no GPU")
    assert checked(FakeNvml(init_fails=DRIVER_NOT_LOADED))[0] == 1


@pytest.mark.parametrize("readings", [0, 2])
def test_nobody_waits_for_good_for_a_driver_that_hangs(readings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    said, pauses = io.StringIO(), 0
    with a_driver_that_hangs() as library:

        def hang_in_the_end(_: float) -> None:
            nonlocal pauses
            pauses += 1
            if pauses >= readings:
                library.hang()
                monkeypatch.setattr("tests.support.gpu_check.INVENTORY_SECONDS_MAX", 0.3)

        if readings:
            library.release()
        else:
            hang_in_the_end(0.0)
        assert main([], out=said, sleep=hang_in_the_end) == 1
    assert "the NVIDIA driver has not answered in 0.3 s" in said.getvalue()
