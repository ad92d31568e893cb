"""A session of GPUs is recorded, told of in a table, and replayed by telemetry; a bad file is one clear error."""

import asyncio
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from libs.gpus import GpuWatch
from libs.gpus.record import main as record
from libs.gpus.recording import RecordingError, load
from libs.gpus.replay import ReplayedGpus
from libs.service import load as load_settings
from services.telemetry.__main__ import watch
from services.telemetry.settings import TelemetrySettings
from tests.support.fake_gpu import DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, NOT_SUPPORTED, FakeGpu, FakeProcess
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_library import FakeLibrary, installed
from tests.support.hung_driver import a_driver_that_hangs

ROOT = Path(__file__).parents[2]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def recorded(path: Path, *, seconds: int = 5, described: list[FakeGpu] | None = None) -> list[FakeGpu]:
    """One GPU gets busier from second to second, and uses 100 J in each."""
    gpus = described or [FakeGpu(uuid="GPU-0", processes=[FakeProcess(pid=1, used=5)]), FakeGpu(uuid="GPU-1")]
    clock = Clock()

    def a_second_goes_by(seconds: float) -> None:
        clock.sleep(seconds)
        gpus[0].utilisation += 10
        gpus[0].energy_millijoules += 100_000

    with installed(FakeLibrary(gpus)):
        said = io.StringIO()
        code = record([str(path), "--seconds", str(seconds)], out=said, clock=clock, sleep=a_second_goes_by)
    assert (code, said.getvalue()) == (0, f"{seconds} samples of 2 GPUs (fake) in {path}\n")
    return gpus


def test_a_recording_says_who_told_it_and_is_read_back(tmp_path: Path) -> None:
    recorded(tmp_path / "a.jsonl")
    recording = load(tmp_path / "a.jsonl")
    assert (recording.header.provider, recording.header.driver, recording.header.period) == ("fake", "570.86.15", 1.0)
    assert [gpu.uuid for gpu in recording.header.gpus] == ["GPU-0", "GPU-1"]
    assert [moment.at for moment in recording.moments] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [moment.samples[0].utilisation for moment in recording.moments] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert {sample.provider for moment in recording.moments for sample in moment.samples} == {"fake"}


def test_a_recording_is_not_written_over_another(tmp_path: Path) -> None:
    recorded(tmp_path / "a.jsonl")
    library = FakeLibrary([FakeGpu(uuid="GPU-0")])
    with installed(library), pytest.raises(FileExistsError):
        record([str(tmp_path / "a.jsonl")], out=io.StringIO())
    assert library.calls["nvmlShutdown"] == library.calls["nvmlInitWithFlags"], "the driver is let go of all the same"


async def test_a_replay_goes_round_says_so_and_its_totals_go_on(tmp_path: Path) -> None:
    recorded(tmp_path / "a.jsonl")
    clock = Clock()
    replay = ReplayedGpus(tmp_path / "a.jsonl", clock=clock)
    watch = GpuWatch(replay.gpus, source=replay, seconds_max=10, clock=clock)
    seen = []
    clock.now = 1000.0
    for _ in range(12):
        busy, idle = await watch.sample()
        assert (busy.provider, idle.provider, idle.utilisation, busy.processes) == ("replayed", "replayed", 0.0, ())
        seen.append((busy.utilisation, busy.energy_joules))
        clock.now += 1.0
    assert [utilisation for utilisation, _ in seen] == [0.0, 0.1, 0.2, 0.3, 0.4] * 2 + [0.0, 0.1]
    joules = [energy for _, energy in seen]
    assert joules == sorted(joules)
    assert watch.near == {(0, 1): "single"}
    assert joules[5:] == [value + 400 for value in joules[:5]] + [800.0, 900.0]


def test_a_replay_knows_the_xid_errors_that_it_gave_last(tmp_path: Path) -> None:
    recorded(tmp_path / "a.jsonl")
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)
    for place, moment in enumerate(map(json.loads, lines[1:]), start=1):
        moment["samples"][1] |= {"xid_errors": {"79": place}, "last_xid": 79}
        lines[place] = json.dumps(moment).encode() + b"\n"
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    clock = Clock()
    replay = ReplayedGpus(tmp_path / "a.jsonl", clock=clock)
    assert replay.xids("GPU-1") == ({}, None)
    replay.read()
    clock.now = 2.0
    assert replay.read()[1].xid_errors == {"79": 3}
    assert (replay.xids("GPU-0"), replay.xids("GPU-1")) == (({}, None), ({"79": 3}, 79))


def _cut(lines: list[bytes]) -> list[bytes]:
    return [*lines[:-1], lines[-1][:-40]]


def _changed(place: int, **values: Any) -> Callable[[list[bytes]], list[bytes]]:
    def change(lines: list[bytes]) -> list[bytes]:
        record = json.loads(lines[place]) | values
        return [*lines[:place], json.dumps(record).encode() + b"\n", *lines[place + 1 :]]

    return change


@pytest.mark.parametrize("readings", [0, 2])
def test_nobody_waits_for_good_for_a_driver_that_hangs(
    readings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, said, path = Clock(), io.StringIO(), tmp_path / "a.jsonl"
    with a_driver_that_hangs() as library:

        def hang_in_the_end(seconds: float) -> None:
            clock.sleep(seconds)
            if clock.now >= readings:
                library.hang()
                monkeypatch.setattr("libs.gpus.record.INVENTORY_SECONDS_MAX", 0.3)

        if readings:
            library.release()
        else:
            hang_in_the_end(0.0)
        assert record([str(path)], out=said, clock=clock, sleep=hang_in_the_end) == 1
    assert "the NVIDIA driver has not answered in 0.3 s" in said.getvalue()
    if readings:
        assert len(load(path).moments) == readings
    else:
        assert not path.exists()


@pytest.mark.parametrize(
    ("spoil", "line", "says"),
    [
        (_cut, 6, "cut off"),
        (lambda lines: [*lines[:3], b"\xff\xfe\n", *lines[3:]], 4, ""),
        (lambda lines: [*lines[:3], b"{}\n", *lines[3:]], 4, "at"),
        (lambda lines: [], 1, "empty"),
        (lambda lines: lines[1:], 1, "not the first line"),
        (lambda lines: lines[:1], 2, "no samples"),
        (_changed(0, recording=2), 1, "format 2"),
        (_changed(0, gpus=[]), 1, "at least one GPU"),
        (_changed(0, period=0), 1, "a period above 0"),
        (_changed(2, samples=[]), 3, "not one sample of each GPU"),
        (_changed(3, at=0.5), 4, "not after"),
        (_changed(3, at="soon"), 4, "at"),
    ],
)
def test_a_bad_recording_is_one_clear_error_with_file_and_line(
    tmp_path: Path, spoil: Callable[[list[bytes]], list[bytes]], line: int, says: str
) -> None:
    path = tmp_path / "a.jsonl"
    recorded(path)
    path.write_bytes(b"".join(spoil(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(RecordingError) as caught:
        ReplayedGpus(path)
    said = str(caught.value)
    assert said.startswith(f"{path}:{line}: ")
    assert says in said
    assert "\n" not in said


def test_a_recording_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"none\.jsonl: No such file"):
        ReplayedGpus(tmp_path / "none.jsonl")


async def test_telemetry_is_told_to_replay_by_a_setting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    recorded(path)
    environ = {"TELEMETRY_NODE_ID": "n", "TELEMETRY_HOME": str(tmp_path), "TELEMETRY_REPLAY": str(path)}
    gpus = await watch(load_settings(TelemetrySettings, prefix="TELEMETRY_", environ=environ), stop=asyncio.Event())
    gpus.seconds_max = 10
    assert [(one.uuid, one.provider) for one in await gpus.sample()] == [("GPU-0", "replayed"), ("GPU-1", "replayed")]
    assert f"{path} is replayed (recorded from fake)" in caplog.text


def test_telemetry_refuses_a_bad_replay_as_a_wrong_setting(tmp_path: Path) -> None:
    """As a whole process: one line, status 2, and before it needs any server."""
    path = tmp_path / "bad.jsonl"
    path.write_text("{\n")
    ended = subprocess.run(
        [sys.executable, "-m", "services.telemetry"],
        env=os.environ | {"TELEMETRY_NODE_ID": "n", "TELEMETRY_HOME": str(tmp_path), "TELEMETRY_REPLAY": str(path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert f"TELEMETRY_REPLAY: {path}:1: not the first line" in ended.stderr
    assert "Traceback" not in ended.stderr


# the table


def checked(nvml: FakeNvml) -> tuple[int, str]:
    clock, said = Clock(), io.StringIO()
    code = record(["--check"], nvml=nvml, out=said, clock=clock, sleep=clock.sleep)
    return code, said.getvalue()


def test_the_check_tells_which_values_the_driver_gives_and_why_not() -> None:
    fails = {"nvmlDeviceGetTemperature": NOT_SUPPORTED}
    code, said = checked(FakeNvml([FakeGpu(uuid="GPU-0", utilisation=50, fails=fails), FakeGpu(uuid="GPU-1")]))
    assert code == 0
    first, _, second = said.partition("GPU 1  ")
    values = dict(line.split(maxsplit=1) for line in first.splitlines() if line.startswith("  "))
    assert (values["utilisation"], values["temperature"], values["power_watts"]) == ("0.5", "-", "75.0")
    assert values["pcie_send_rate"] == "0.0", "rates take two readings"
    assert values["nvmlDeviceGetTemperature:"] == "Not Supported"
    assert "provider fake, driver 570.86.15" in first
    assert "nvmlDeviceGetTemperature" not in second
    assert "GPUs 0 and 1: single" in said


def test_the_check_says_when_there_is_nothing_to_check() -> None:
    code, said = checked(FakeNvml(init_fails=LIBRARY_NOT_FOUND))
    assert code == 1
    assert said.startswith("no GPU")
    assert checked(FakeNvml(init_fails=DRIVER_NOT_LOADED))[0] == 1


@pytest.mark.parametrize(
    "words", [["--seconds", "0", "f"], ["--seconds", "nan", "f"], ["--period", str(-math.inf), "f"], []]
)
def test_recording_wants_a_file_and_a_time(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        record(words, nvml=FakeNvml())
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err
