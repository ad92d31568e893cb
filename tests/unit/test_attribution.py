"""Whose a process on a GPU is: found by its group, its session or its ancestors, and nobody's where none tells.

The files are written by us in the form that Linux writes them.
"""

from functools import partial
from pathlib import Path

import pytest

from weft.messages.signals import GpuProcess, GpuSample
from weftd.telemetry.processes import read_groups, read_process
from weftd.telemetry.thinking.attribution import Attribution
from weftd.telemetry.thinking.readings import FoundRun

STAT = "{pid} (python) S {parent} {session} {session} 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {started} 0 1 0\n"


class Proc:
    """A /proc that a test fills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int, *, parent: int = 1, session: int = 1, group: str = "/", started: int = 1) -> None:
        place = self.folder / str(pid)
        place.mkdir(exist_ok=True)
        (place / "stat").write_text(STAT.format(pid=pid, parent=parent, session=session, started=started))
        (place / "cgroup").write_text(f"4:memory:{group}\n1:cpu,cpuacct:{group}\n0::/\n")

    def attribution(self) -> Attribution:
        proc = str(self.folder)
        return Attribution(look=partial(read_process, proc=proc), groups=partial(read_groups, proc=proc))

    def remove(self, pid: int) -> None:
        for path in (self.folder / str(pid)).iterdir():
            path.unlink()
        (self.folder / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def boxed(job_id: str, pid: int) -> FoundRun:
    """Of the docker runtime."""
    return FoundRun(job_id=job_id, epoch=2, rank=1, pid=pid)


def spawned(job_id: str, pid: int, **cgroups: str) -> FoundRun:
    """Of the process runtime."""
    return FoundRun(job_id=job_id, epoch=2, rank=1, pid=pid, cgroups=cgroups, leads_session=True)


def gpu(*pids: int, index: int = 0) -> GpuSample:
    processes = tuple(GpuProcess(pid=pid, memory_used=pid << 20) for pid in pids)
    return GpuSample(index=index, uuid=f"GPU-{index}", model="m", processes=processes)


def owners(attribution: Attribution, runs: list[FoundRun], *pids: int) -> list[str]:
    (sample,) = attribution.attributed((gpu(*pids),), runs)
    return [process.job_id for process in sample.processes]


def test_a_process_of_a_container_is_found_by_its_group_and_all_else_of_it_stays(proc: Proc) -> None:
    proc.add(100, group="/docker/abc")
    proc.add(150, parent=7, session=150, group="/docker/abc/below/it")
    proc.add(200, group="/docker/abcd")
    runs = [boxed("a", 100)]
    first, second = proc.attribution().attributed((gpu(150, 200), gpu(100, index=1)), runs)
    assert first.processes == (
        GpuProcess(pid=150, memory_used=150 << 20, job_id="a", epoch=2, rank=1),
        GpuProcess(pid=200, memory_used=200 << 20),
    )
    assert [process.job_id for process in second.processes] == ["a"]
    assert (second.index, second.uuid) == (1, "GPU-1")


def test_a_process_of_the_process_runtime_is_found_by_its_session_or_by_who_began_it(proc: Proc) -> None:
    proc.add(100, session=100)
    proc.add(101, parent=100, session=100)
    proc.add(102, parent=101, session=102)
    proc.add(103, parent=102, session=102)
    proc.add(104, parent=1, session=100)
    proc.add(300, parent=1, session=300)
    assert owners(proc.attribution(), [spawned("a", 100)], 100, 101, 102, 103, 104, 300) == ["a"] * 5 + [""]


def test_a_group_that_runs_share_says_nothing_and_one_that_is_not_their_own_neither(proc: Proc) -> None:
    proc.add(100, session=100, group="/executor")
    proc.add(200, session=200, group="/executor")
    proc.add(300, session=300, group="/executor")
    proc.add(201, parent=200, session=201, group="/executor")
    attribution = proc.attribution()
    assert owners(attribution, [spawned("a", 100), spawned("b", 200)], 100, 201, 300) == ["a", "b", ""]
    assert owners(attribution, [boxed("a", 100), boxed("b", 200)], 100, 201, 300) == ["a", "b", ""]


def test_a_group_of_its_own_finds_a_process_that_left_the_session_and_whose_parent_ended(proc: Proc) -> None:
    proc.add(100, session=100, group="/weft/n/a")
    proc.add(150, parent=1, session=150, group="/weft/n/a")
    assert owners(proc.attribution(), [spawned("a", 100, memory="/sys/x")], 150) == ["a"]


def test_a_pid_that_cannot_be_seen_is_nobodys(proc: Proc) -> None:
    proc.add(100, group="/docker/abc")
    assert owners(proc.attribution(), [boxed("a", 100)], 0, 999, 4_000_000_000) == ["", "", ""]


def test_a_number_that_another_process_has_by_now_is_looked_at_anew(proc: Proc) -> None:
    attribution, runs = proc.attribution(), [boxed("a", 100)]
    proc.add(100, group="/docker/abc")
    proc.add(150, group="/docker/abc", started=5)
    assert owners(attribution, runs, 150) == ["a"]
    proc.add(150, group="/elsewhere", started=9)
    assert owners(attribution, runs, 150) == [""]


def test_a_run_that_has_ended_owns_nothing_and_one_that_comes_later_is_found(proc: Proc) -> None:
    attribution = proc.attribution()
    proc.add(150, group="/docker/abc")
    assert owners(attribution, [], 150) == [""]
    proc.add(100, group="/docker/abc")
    assert owners(attribution, [boxed("a", 100)], 150) == ["a"]
    proc.remove(100)
    assert owners(attribution, [], 150) == [""]
    proc.add(100, group="/docker/abc", started=7)
    assert owners(attribution, [boxed("b", 100)], 150) == ["b"]


def test_ancestors_that_go_round_are_not_followed_for_ever(proc: Proc) -> None:
    proc.add(10, parent=11, session=10)
    proc.add(11, parent=10, session=11)
    assert owners(proc.attribution(), [spawned("a", 100)], 10) == [""]


def test_what_is_named_already_keeps_its_name(proc: Proc) -> None:
    proc.add(100, group="/docker/abc")
    named = GpuProcess(pid=100, job_id="recorded", epoch=9, rank=3)
    sample = GpuSample(index=0, uuid="u", model="m", processes=(named, GpuProcess(pid=100)))
    (after,) = proc.attribution().attributed((sample,), [boxed("a", 100)])
    assert [process.job_id for process in after.processes] == ["recorded", "a"]
