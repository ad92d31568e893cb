"""The hostile tenant and the rogue node do what they are there for: also in a short run, and the same from a seed."""

import os
import stat
import subprocess
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.hostile import VANDAL
from tests.chaos.misdeeds import BY_JOBS, BY_REQUESTS, IN_CONTAINERS, misdeeds
from tests.chaos.rogue import Lie, lies
from tests.chaos.traces import read_came, read_runs
from tests.chaos.wishes import COMMAND, PYTHON

VANDAL_SECONDS_MAX = 60


def test_a_minute_meets_every_misdeed_and_a_seed_gives_the_same() -> None:
    assert {misdeed.what for misdeed in misdeeds(7, 60)} == {*BY_JOBS, *BY_REQUESTS}
    assert {misdeed.what for misdeed in misdeeds(7, 60, engine=True)} == {*BY_JOBS, *BY_REQUESTS, *IN_CONTAINERS}
    assert misdeeds(7, 60) == misdeeds(7, 60) != misdeeds(8, 60)


def vandal(folder: Path, misdeed: str) -> None:
    """As the process runtime runs it: below a shim, in a run's folder."""
    folder.mkdir()
    (folder / "exit").write_text(" " * 15)
    env = {**os.environ, "WEFT_PROGRESS": str(folder / "progress")}
    command = ["sh", "-c", f"{PYTHON} -I -S {VANDAL} {misdeed}; echo survived"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=VANDAL_SECONDS_MAX)
    assert not done.stderr
    assert ("survived" in done.stdout) == (not misdeed.endswith("-exit")), "the shim of an odd exit file is killed"


@pytest.mark.parametrize("misdeed", [misdeed for misdeed in BY_JOBS if misdeed.endswith("-exit")])
def test_a_job_leaves_an_odd_exit_file_and_kills_its_shim(tmp_path: Path, misdeed: str) -> None:
    vandal(tmp_path / "run", misdeed)
    left = tmp_path / "run" / "exit"
    mode = left.lstat().st_mode
    match misdeed:
        case "fifo-exit":
            assert stat.S_ISFIFO(mode)
        case "folder-exit":
            assert stat.S_ISDIR(mode)
        case "link-exit":
            assert stat.S_ISLNK(mode)
        case _:
            assert not 0 <= int(left.read_text()) < 256


def test_a_job_leaves_a_folder_deeper_than_python_recurses(tmp_path: Path) -> None:
    vandal(tmp_path / "run", "deep-folder")
    depth = 0
    home = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tmp_path / "run")
        while os.path.isdir("d"):
            os.chdir("d")
            depth += 1
    finally:
        os.fchdir(home)
        os.close(home)
        subprocess.run(["rm", "-r", tmp_path / "run"], check=True)
    assert depth > 1000


def test_a_job_leaves_very_many_names_or_no_folder(tmp_path: Path) -> None:
    vandal(tmp_path / "wide", "wide-folder")
    assert len(os.listdir(tmp_path / "wide")) > 10_000
    vandal(tmp_path / "none", "no-folder")
    assert not (tmp_path / "none").exists()


def test_a_polite_job_that_is_told_to_stop_exits_0_and_says_that_it_was_interrupted(tmp_path: Path) -> None:
    for folder in ("traces", "said"):
        (tmp_path / folder).mkdir()
    of_weft = {"JOB_ID": "j", "EPOCH": "0", "RANK": "0", "GPUS": "", "WORLD_SIZE": "1", "PROGRESS": "/nodes/node-1/p"}
    of_chaos = {"FOLDER": str(tmp_path), "KEY": "k", "SECONDS": "30", "POLITE": "1"}
    env = {f"WEFT_{name}": value for name, value in of_weft.items()}
    env |= {f"CHAOS_{name}": value for name, value in of_chaos.items()}
    with subprocess.Popen(COMMAND, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(VANDAL_SECONDS_MAX) == 0
    (run,) = read_runs(tmp_path)
    assert (run.status, run.interrupted) == (0, True)
    assert read_came(tmp_path) == {("j", 0, 0)}


def some(seed: int) -> list[Lie]:
    return list(islice(lies(seed, lambda: ["j-1", "j-2"]), 600))


def test_the_rogue_node_tells_every_lie_and_a_seed_gives_the_same() -> None:
    told = some(7)
    assert {lie.what for lie in told} == {
        *("report", "number of a report", "capacity", "number of a run", "stray", "end", "progress", "telemetry")
    }
    assert told == some(7) != some(8)


def test_the_rogue_node_offers_room_for_no_job_and_speaks_on_its_own_subjects_alone() -> None:
    for lie in some(7):
        assert lie.subject.endswith(".rogue")
        if lie.what == "report":
            assert lie.body["capacity"] == {"cpus": 0.001, "memory": 1 << 20, "gpus": []}
