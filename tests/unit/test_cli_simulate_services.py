"""`weft simulate --services`: what is printed, the same each time; a bad file is one line with its field."""

import json
from pathlib import Path

import pytest

from weftd.cli.__main__ import main

Said = pytest.CaptureFixture[str]

CHAT = """
- name: chat
  rate: 5
  swing: 0.5
  bursts: {every: 5m, lasts: 20s, times: 4}
  time: 100ms
  time_cv: 0.5
  start: 5s
  objective: {latency: 400ms, percentile: 99, rate: 10}
  replicas: {min: 1, max: 8, want: 1}
"""
SHORT = ("--hours", "0.2", "--nodes", "2")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "services.yaml").write_text(CHAT)
    return tmp_path / "services.yaml"


def ran(capsys: Said, *options: str) -> str:
    assert main(["simulate", *options]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def refusal(capsys: Said, file: Path, text: str, *options: str) -> str:
    file.write_text(text)
    assert main(["simulate", "--services", str(file), *SHORT, *options]) in (1, 2)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("weft: ")
    assert said.err.count("\n") == 1
    return said.err


def test_services_alone_are_compared_by_their_autoscalers(file: Path, capsys: Said) -> None:
    out = ran(capsys, "--services", str(file), *SHORT, "--autoscaler", "weft,weft-quick")
    assert [name for name in ("+weft ", "+weft-quick ") if name in out] == ["+weft ", "+weft-quick "]
    assert "KEPT %" in out
    assert "JCT" not in out


def test_services_and_training_are_shown_side_by_side(file: Path, capsys: Said) -> None:
    jobs = ("--generate", "synergy", "--jobs", "5", "--elastic", "2", "--preset", "weft-best", "--partition", "weft")
    out = ran(capsys, *jobs, "--services", str(file), *SHORT, "--autoscaler", "weft,weft-quick")
    assert "JCT" in out
    assert "BORROWED h" in out


def test_the_same_inputs_give_the_same_bytes_and_another_seed_others(file: Path, capsys: Said) -> None:
    options = ("--services", str(file), *SHORT, "--json", "-")
    first, again, other = ran(capsys, *options), ran(capsys, *options), ran(capsys, *options, "--seed", "2")
    assert first == again
    assert first != other
    told = json.loads(first)["services"]["chat"]
    assert told["arrived"] == told["answered"] + told["refused"] + told["failed"] + told["open"]


def test_without_services_nothing_of_them_is_written(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "t.csv").write_text("id,arrival_s,gpus,duration_s\nj-1,0,4,3600\n")
    assert "services" not in json.loads(ran(capsys, "--trace", str(tmp_path / "t.csv"), "--json", "-"))


def test_recorded_rates_and_arrivals_are_read(file: Path, tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "r.csv").write_text("time,rate\n0,2\n300,0\n")
    (tmp_path / "a.csv").write_text("time\n1.5\n2.5\n700\n")
    text = "".join(
        f"- {{name: {name}, recorded: {name}.csv, time: 50ms, replicas: {{max: 2}}}}\n" for name in ("r", "a")
    )
    file.write_text(text)
    told = json.loads(ran(capsys, "--services", str(file), *SHORT, "--json", "-"))["services"]
    assert 500 < told["r"]["arrived"] < 700
    assert told["a"]["arrived"] == 3


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (("rate: 5", "rate: -5"), "services[0].rate"),
        (("rate: 5", "rate: .inf"), "services[0].rate"),
        (("rate: 5", "recorded: none.csv"), "none.csv: cannot be read"),
        (("rate: 5", ""), "services[0].rate"),
        (("swing: 0.5", "swing: 2"), "services[0].swing"),
        (("swing: 0.5", "sving: 0.5"), "services[0].sving"),
        (("time: 100ms", "time: 0s"), "services[0].time"),
        (("time: 100ms", "time: soon"), "services[0].time"),
        (("time_cv: 0.5", "time_cv: 1e9"), "services[0].time_cv"),
        (("start: 5s", "start: 5"), "services[0].start"),
        (("latency: 400ms", "latency: fast"), "services[0].objective.latency"),
        (("percentile: 99", "percentile: 100"), "services[0].objective.percentile"),
        (("max: 8, want: 1", "max: 8, want: 9"), "services[0].replicas"),
        (("{min: 1, max: 8", "{min: 9, max: 8"), "services[0].replicas"),
        (("max: 8", "max: 1000000000"), "services[0].replicas.max"),
        (("times: 4", "times: 0"), "services[0].bursts.times"),
        (("every: 5m", "every: 0s"), "services[0].bursts"),
    ],
)
def test_a_bad_service_is_one_line_that_names_its_field(
    file: Path, capsys: Said, change: tuple[str, str], field: str
) -> None:
    said = refusal(capsys, file, CHAT.replace(*change))
    assert field in said


def test_a_file_that_is_no_list_of_services_is_refused(file: Path, capsys: Said) -> None:
    assert "services" in refusal(capsys, file, "- 1\n")
    assert "services" in refusal(capsys, file, "[]\n")
    assert "services" in refusal(capsys, file, "name: chat\n")
    assert "not YAML" in refusal(capsys, file, "{")
    assert "chat" in refusal(capsys, file, CHAT + CHAT)


def test_a_recorded_file_that_is_wrong_is_refused_with_its_line(file: Path, tmp_path: Path, capsys: Said) -> None:
    text = "- {name: r, recorded: r.csv, time: 50ms, replicas: {max: 2}}\n"
    for rows, words in (
        ("time,rate\n0,2\n0,3\n", "r.csv:3: time does not grow"),
        ("time,rate\n0,-2\n", "r.csv:2: rate is negative"),
        ("when\n3\n", "missing column time"),
        ("time\nnan\n", "r.csv:2: time is no finite number"),
    ):
        (tmp_path / "r.csv").write_text(rows)
        assert words in refusal(capsys, file, text)


def test_options_that_do_not_go_together_are_refused(file: Path, capsys: Said) -> None:
    assert "no such autoscaler as 'kpa'" in refusal(capsys, file, CHAT, "--autoscaler", "kpa")
    assert "--jobs goes with" in refusal(capsys, file, CHAT, "--jobs", "3")
    assert "--report draws jobs" in refusal(capsys, file, CHAT, "--report", "out.html")
    assert main(["simulate", "--generate", "synergy", "--autoscaler", "weft"]) == 2
    assert "--autoscaler goes with --services only" in capsys.readouterr().err
    assert main(["simulate"]) == 2
    assert "--services" in capsys.readouterr().err
