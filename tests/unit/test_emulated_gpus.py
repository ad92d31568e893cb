"""Emulated GPUs are as slow as a file says, from the next look on; what makes no sense slows nothing."""

import logging
from pathlib import Path

import pytest

from weft.emulation.slowdowns import slow_down, slowdown_here, slowdown_of


def test_without_a_file_a_gpu_is_as_it_should_be(tmp_path: Path) -> None:
    assert slowdown_of(tmp_path, [0, 1]) == 1.0
    assert slowdown_of(tmp_path / "missing", [0]) == 1.0
    assert slowdown_of(tmp_path, []) == 1.0


def test_a_run_is_as_slow_as_its_slowest_gpu(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("1.33\n")
    (tmp_path / "2").write_text("  1.5")
    (tmp_path / "3").write_text("9")
    assert slowdown_of(tmp_path, [0]) == 1.33
    assert slowdown_of(tmp_path, [0, 1, 2]) == 1.5


def test_what_was_written_counts_from_the_next_look_on(tmp_path: Path) -> None:
    slow_down(tmp_path, 0, 1.33)
    assert slowdown_of(tmp_path, [0]) == 1.33
    slow_down(tmp_path, 0, 1.0)
    assert slowdown_of(tmp_path, [0]) == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_gpu_may_be_faster_than_the_others(tmp_path: Path) -> None:
    slow_down(tmp_path, 0, 0.9)
    assert slowdown_of(tmp_path, [0]) == 0.9
    assert slowdown_of(tmp_path, [0, 1]) == 1.0


@pytest.mark.parametrize("text", ["", "fast", "nan", "inf", "-1", "0", "1e9", "1.3.3", "\x00\xff", "1" * 1000])
def test_what_is_no_slowdown_counts_as_one_and_is_said_once(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "5").write_text(text)
    with caplog.at_level(logging.WARNING):
        assert [slowdown_of(tmp_path, [5]) for _ in range(3)] == [1.0, 1.0, 1.0]
    assert [record.message for record in caplog.records if str(tmp_path / "5") in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1


def test_a_folder_in_the_place_of_a_file_slows_nothing(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    assert slowdown_of(tmp_path, [1]) == 1.0


@pytest.mark.parametrize("slowdown", [0.0, -1.0, float("nan"), float("inf"), 1e6])
def test_nobody_can_write_what_is_no_slowdown(tmp_path: Path, slowdown: float) -> None:
    with pytest.raises(ValueError, match="expected a number from"):
        slow_down(tmp_path, 0, slowdown)
    assert list(tmp_path.iterdir()) == []


def test_a_run_finds_its_own_by_its_environment(tmp_path: Path) -> None:
    slow_down(tmp_path, 2, 1.33)
    here = {"WEFT_EMULATED_SLOWDOWNS": str(tmp_path)}
    assert slowdown_here({**here, "WEFT_GPUS": "0,2"}) == 1.33
    assert slowdown_here({**here, "WEFT_GPUS": "0,1"}) == 1.0
    assert slowdown_here(here) == 1.0
    assert slowdown_here({"WEFT_GPUS": "2"}) == 1.0
