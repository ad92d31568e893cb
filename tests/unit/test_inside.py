"""The functions of `weft` for the program of a job."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from weft.messages.nodes import Member, Members
from weftd.executor.files.members import encoded
from weftd.executor.logs.lines import Tail, pairs

HANDLED = """
import os, signal, time
import weft
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"handled\\n"))  # the signal may come while print writes
assert not weft.should_stop()
print("ready", flush=True)
while not weft.should_stop():
    time.sleep(0.01)
print("stopped", flush=True)
"""


def test_a_step_is_read_back_by_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "progress"
    monkeypatch.setenv("WEFT_PROGRESS", str(file))
    weft.step(120, of=1000, loss=0.3125, learning_rate=1e-05)
    weft.step(121)
    lines = Tail(str(file)).news(last=True)
    assert [pairs(line) for line in lines] == [
        {"step": 120.0, "steps": 1000.0, "loss": 0.3125, "learning_rate": 1e-05},
        {"step": 121.0},
    ]


@pytest.mark.parametrize("name", ["steps", "a b", "a=1 loss", "", "müll"])
def test_a_metric_that_no_line_can_have_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_PROGRESS", str(tmp_path / "progress"))
    with pytest.raises(ValueError, match="expected letters, digits and '_'"):
        weft.step(1, **{name: 1.0})
    assert not (tmp_path / "progress").exists()


def test_outside_a_job_a_program_runs_as_its_only_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WEFT_PROGRESS", "WEFT_RANK", "WEFT_MEMBERS", "WEFT_WORLD_SIZE", "WEFT_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    weft.step(1, loss=0.5)
    assert list(tmp_path.iterdir()) == []
    assert (weft.rank(), len(weft.members())) == (0, 1)
    assert weft.checkpoint_dir.resolve() == tmp_path.resolve()


def test_the_members_of_a_job_that_resizes_live_are_those_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "members.json"
    ranks = (
        Member(role="worker", rank=3, address="10.0.0.3", port=12003),
        Member(role="worker", rank=0, address="10.0.0.1", port=12000),
    )
    file.write_bytes(encoded(Members(changes=2, ranks=ranks, least=1, most=4)))
    monkeypatch.setenv("WEFT_MEMBERS", str(file))
    assert weft.members() == (
        weft.Member(rank=0, role="worker", address="10.0.0.1", port=12000),
        weft.Member(rank=3, role="worker", address="10.0.0.3", port=12003),
    )
    file.write_text('{"ranks": 1}')
    with pytest.raises(ValueError, match="has no ranks as Weft writes them"):
        weft.members()


def test_the_members_of_any_other_job_are_all_of_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"WEFT_RANK": "1", "WEFT_WORLD_SIZE": "3", "WEFT_ROLE": "worker"}
    for name, value in {**environment, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WEFT_MEMBERS", raising=False)
    assert weft.rank() == 1
    assert weft.members() == (
        weft.Member(rank=0, role="", address="10.0.0.1", port=29500),
        weft.Member(rank=1, role="worker", address="", port=0),
        weft.Member(rank=2, role="", address="", port=0),
    )


def test_a_stop_is_seen_and_a_handler_of_the_program_is_called_too() -> None:
    with subprocess.Popen([sys.executable, "-c", HANDLED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read().split() == ["handled", "stopped"]
    assert process.returncode == 0


def test_a_first_question_outside_the_main_thread_is_refused() -> None:
    program = "import weft; weft.should_stop()"
    assert _error_in_a_thread(lambda: exec(program)) == (
        "call weft.should_stop() in the main thread first: only there can it handle SIGTERM"
    )


def _error_in_a_thread(call: Callable[[], None]) -> str:
    found: list[str] = []

    def work() -> None:
        try:
            call()
        except RuntimeError as error:
            found.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return "".join(found)


def test_a_metric_is_read_back_by_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "progress"
    monkeypatch.setenv("WEFT_PROGRESS", str(file))
    weft.metric("reward", -12.5)
    assert [pairs(line) for line in Tail(str(file)).news(last=True)] == [{"reward": -12.5}]
    with pytest.raises(ValueError, match="expected letters, digits and '_'"):
        weft.metric("step", 1)
