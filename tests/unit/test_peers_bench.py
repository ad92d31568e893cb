"""`python -m tests.bench peers`: what drives another scheduler, here a program that runs each job at once."""

import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.bench.peers import peer as peers
from tests.bench.peers.measure import _against, _one_round
from tests.bench.peers.peer import Peer, SkippedError, driving, installed

ENDED_SECONDS_MAX = 60.0
AT_ONCE = """
import subprocess, sys
sys.path.insert(0, {drivers!r})
from line import NO_OP, at_rest, one_by_one, serve
submit = lambda: subprocess.run([NO_OP])
wait = lambda done: None
serve(
    lambda count: {{**one_by_one(count, submit, wait), "seen": at_rest(submit, wait, 1)}},
    lambda count: [submit() for _ in range(count)] and None,
    durable=True,
)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "at_once.py"
    path.write_text(AT_ONCE.format(drivers=str(peers.DRIVERS)))
    monkeypatch.setattr(peers, "DRIVERS", tmp_path)
    return path


def test_a_round_has_the_rates_and_the_cpu_of_all_processes_of_a_peer(program: Path) -> None:
    found: dict[str, list[float]] = defaultdict(list)
    one = Peer(name="at-once", driver="at_once")
    with program.with_suffix(".log").open("w") as log, driving(one, Path(sys.executable), log) as driver:
        assert driver.durable
        _one_round(driver, found, 2, 3)
    assert found["single/s"][0] > 0
    assert found["array/s"][0] > 0
    assert found["memory, MiB"][0] > 0
    assert len(found["CPU ms an element"]) == 1


def test_what_a_peer_prints_as_it_starts_is_no_answer_and_what_outlives_its_driver_is_ended(program: Path) -> None:
    left = "child = subprocess.Popen(['sleep', '600'], start_new_session=True)"
    starting = "print('a banner', flush=True)\nPATH(__file__).with_suffix('.pid').write_text(str(child.pid))\nsubmit ="
    text = program.read_text().replace("submit =", f"from pathlib import Path as PATH\n{left}\n{starting}", 1)
    program.write_text(text)
    with (
        program.with_suffix(".log").open("w") as log,
        driving(Peer(name="at-once", driver="at_once"), Path(sys.executable), log) as driver,
    ):
        assert driver.durable
        pid = int(program.with_suffix(".pid").read_text())
    assert "a banner" in program.with_suffix(".log").read_text()
    ends = time.monotonic() + ENDED_SECONDS_MAX
    while _lives(pid):
        assert time.monotonic() < ends, "it lives"
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    """False also for a process that has ended and that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_peer_whose_driver_ends_is_left_out_with_its_status(program: Path) -> None:
    program.write_text("raise SystemExit(3)")
    one = Peer(name="at-once", driver="at_once")
    with (
        program.with_suffix(".log").open("w") as log,
        pytest.raises(SkippedError, match="ended with status 3"),
        driving(one, Path(sys.executable), log),
    ):
        pass


def test_a_peer_that_needs_a_program_is_left_out_where_apt_or_root_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SkippedError, match="apt or root is missing"):
        installed(Peer(name="slurm", driver="slurm_driver", debian=("slurm-wlm",), needs="slurmctld"), tmp_path)


def test_a_rate_is_compared_with_that_of_a_peer_that_was_measured_alone() -> None:
    own = {"single/s": [100.0, 200.0, 300.0], "array/s": [400.0]}
    aims = _against(own, {"slurm": {"single/s": [50.0], "array/s": [40.0]}})
    assert {name: (aim.value, aim.met) for name, aim in aims.items()} == {
        "single_times_slurm": (4.0, False),
        "array_times_slurm": (10.0, False),
    }
