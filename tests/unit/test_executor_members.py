"""The members of a job that resizes live: when a run is shown them, and the file that it finds them in."""

import asyncio
import json
import os
import stat
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.odd_folders import make_deep, swept
from tests.support.runs import desired, order
from tests.unit.test_executor_service import World, story
from weft.domain.spec import ResizeSignal
from weft.messages.nodes import JobOrder, Member, Members, RankOrder, RoleOrder, RunState, StartRun
from weftd.executor.files import members as files
from weftd.executor.files.home import Home
from weftd.executor.runs import NO_LIMIT, Limits, Run, RunKey, RuntimeUnavailableError
from weftd.executor.runtime import signalling
from weftd.executor.thinking.core import Action, Reconciler, ReconcilerTimings, Resize, ShowMembers, Terminate
from weftd.executor.thinking.members import Changing
from weftd.executor.thinking.orders import runs_of

KEY = RunKey("job-1", 1, 0)
HAS = Limits(cpus=1.0, memory=256 << 20, egress=NO_LIMIT)  # the limits of `order()`
TIMINGS = ReconcilerTimings(resize_again_seconds=1.0, resize_again_max=60.0)


def of(*ranks: int, changes: int = 0, signal: str = "SIGUSR1") -> Members:
    found = tuple(Member(role="worker", rank=rank, address="10.0.0.1", port=2345 + rank) for rank in ranks)
    return Members(changes=changes, ranks=found, least=1, most=8, signal=signal)


ALONE, BOTH = of(0), of(0, 1, changes=1)


def running(key: RunKey = KEY) -> Run:
    return Run(key=key, state=RunState.RUNNING, started_at=1.0, grace=10.0, limits=HAS)


def heard(*orders: StartRun, at: float = 0.0, reconciler: Reconciler | None = None) -> Reconciler:
    reconciler = reconciler or Reconciler(TIMINGS)
    reconciler.observe(desired(*orders), reported=(), sent_at=at)
    return reconciler


def decide(reconciler: Reconciler, *runs: Run, now: float, busy: frozenset[RunKey] = frozenset()) -> list[Action]:
    return reconciler.decide(runs, busy=busy, now=now)


def shown(reconciler: Reconciler, *, now: float, why: str = "") -> ShowMembers:
    """Decide, and carry out what must be one action."""
    (action,) = decide(reconciler, running(), now=now)
    assert isinstance(action, ShowMembers)
    reconciler.shown(action, why)
    return action


# ── what is decided ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_order_for_a_job_names_its_members_to_each_rank() -> None:
    roles = (RoleOrder(name="worker", shm=0, nodes=((0, 2),)),)
    ranks = tuple(RankOrder(rank=rank, role=0, role_rank=rank, gpus=(), cpus=1.0, memory=1) for rank in (0, 1))
    shared = {"name": "train", "tenant": "alice", "grace": 1.0, "master_address": "10.0.0.1", "master_port": 2345}
    job = JobOrder(
        job_id="job-1", epoch=1, world_size=2, addresses=("10.0.0.1",), members=BOTH, roles=roles, ranks=ranks, **shared
    )
    assert [run.members for run in runs_of(job)] == [BOTH, BOTH]


def test_a_run_without_members_is_left_alone() -> None:
    assert decide(heard(order()), running(), now=1.0) == []


def test_members_are_shown_once_and_each_change_once_more() -> None:
    reconciler = heard(order(members=ALONE))
    assert shown(reconciler, now=1.0) == ShowMembers(order(members=ALONE))
    assert decide(reconciler, running(), now=1.1) == []
    heard(order(members=BOTH), reconciler=reconciler)
    assert shown(reconciler, now=1.2).order.members == BOTH
    assert decide(reconciler, running(), now=99.0 - 10.0) == []


def test_the_signal_of_a_known_change_is_due_until_it_was_shown() -> None:
    reconciler = heard(order(members=ALONE))
    assert not shown(reconciler, now=1.0).signal_due
    heard(order(members=BOTH), reconciler=reconciler)
    assert shown(reconciler, now=2.0, why="the engine is away").signal_due
    assert reconciler.memory.changing == (Changing(KEY, 1),)
    assert shown(reconciler, now=4.0).signal_due
    assert reconciler.memory.changing == ()


def test_the_next_executor_shows_members_again_and_owes_only_a_signal_that_may_not_have_been_sent() -> None:
    before = heard(order(members=ALONE))
    shown(before, now=1.0)
    assert not shown(heard(order(members=ALONE), reconciler=Reconciler(TIMINGS, before.memory)), now=2.0).signal_due
    heard(order(members=BOTH), reconciler=before)
    decide(before, running(), now=2.0)  # It dies here, perhaps between the file and the signal.
    assert shown(heard(order(members=BOTH), reconciler=Reconciler(TIMINGS, before.memory)), now=3.0).signal_due
    third = of(0, 1, 2, changes=2)  # Another change meanwhile: the file differs anyway.
    assert not shown(heard(order(members=third), reconciler=Reconciler(TIMINGS, before.memory)), now=3.0).signal_due


def test_other_bounds_for_the_same_ranks_are_shown_without_a_signal() -> None:
    reconciler = heard(order(members=ALONE))
    shown(reconciler, now=1.0)
    heard(order(members=replace(ALONE, most=16)), reconciler=reconciler)
    assert not shown(reconciler, now=2.0).signal_due


def test_what_cannot_be_shown_is_tried_ever_more_seldom_and_reported() -> None:
    reconciler = heard(order(members=BOTH))
    tried = []
    for tick in range(2 * 400):
        now = tick / 2
        if tick % 60 == 0:
            heard(order(members=BOTH), reconciler=reconciler, at=now)
        for action in decide(reconciler, running(), now=now):
            assert isinstance(action, ShowMembers)
            reconciler.shown(action, "members: Is a directory")
            tried.append(now)
    assert tried[:8] == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0]
    assert all(later - earlier <= 60.0 for earlier, later in pairwise(tried))
    assert reconciler.report([running()], {})[0].not_applied == "members: Is a directory"
    heard(order(members=of(0, 1, 2, changes=2)), reconciler=reconciler, at=400.0)
    shown(reconciler, now=400.0)  # A new change is shown at once.
    assert reconciler.report([running()], {})[0].not_applied == ""


def test_limits_and_members_that_are_not_applied_are_both_reported_and_both_tried() -> None:
    reconciler = heard(order(members=BOTH, cpus=2.0))
    shown(reconciler, now=1.0, why="members: Is a directory")
    (action,) = decide(reconciler, running(), now=1.1)
    assert isinstance(action, Resize)
    reconciler.not_applied(action, "cpus: no")
    assert reconciler.report([running()], {})[0].not_applied == "cpus: no; members: Is a directory"


def test_only_a_running_run_that_is_to_stay_is_shown_members() -> None:
    reconciler = heard(order(members=BOTH))
    assert decide(reconciler, Run(key=KEY, state=RunState.STARTING), now=1.0) == []
    assert decide(reconciler, running(), now=1.0, busy=frozenset({KEY})) == []
    heard(order(epoch=2, members=BOTH), reconciler=reconciler)
    assert decide(reconciler, running(), now=1.0) == [Terminate(KEY)]
    heard(order(members=BOTH), reconciler=reconciler)
    assert decide(reconciler, running(), now=1.0) == []


def test_a_run_that_is_gone_is_forgotten() -> None:
    reconciler = heard(order(members=ALONE))
    shown(reconciler, now=1.0, why="no")
    heard(reconciler=reconciler)
    decide(reconciler, now=2.0)
    assert reconciler.memory.changing == ()


STEPS = st.lists(st.sampled_from(["change", "decide", "carry out", "fail", "restart"]), max_size=40)


@given(STEPS)
def test_in_any_history_the_run_has_the_newest_members_in_the_end_and_heard_of_each_file(steps: list[str]) -> None:
    """The file is replaced at once when an action is carried out, also by one that fails at its signal."""
    reconciler, now, changes = heard(order(members=of(0))), 0.0, 0
    file, heard_of = 0, 0  # The number in the file, and the newest of which the run was signalled.
    for step in [*steps, "decide", "carry out"]:
        now += 100.0
        wanted = order(members=of(0, changes=changes))
        reconciler.observe(desired(wanted), reported=(), sent_at=now)
        if step == "change":
            changes += 1
        if step == "restart":
            reconciler = Reconciler(TIMINGS, reconciler.memory)
        if step in ("change", "restart"):
            continue
        for action in decide(reconciler, running(), now=now):
            assert isinstance(action, ShowMembers)
            assert action.order.members is not None
            due = action.signal_due or action.order.members.changes != file
            if step == "decide":  # The executor is slow; nothing was done so far.
                continue
            file = action.order.members.changes
            if step == "carry out":
                heard_of = file if due else heard_of
                reconciler.shown(action, "")
            else:
                reconciler.shown(action, "the engine does not answer")
    assert (file, heard_of) == (changes, changes)


# ── on a whole node ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_ranks_that_stay_hear_once_of_each_change_also_across_a_restart_of_the_executor() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(order(members=ALONE))
            await world.control.hears(KEY, "running")
            await asyncio.sleep(1.0)
            assert world.host.signals == []
            await world.control.want(order(members=BOTH), order(rank=1, members=BOTH))
            await world.control.hears(RunKey("job-1", 1, 1), "running")
            await asyncio.sleep(5.0)
        async with world.executor():
            await asyncio.sleep(5.0)
            assert world.host.signals == [(KEY, "SIGUSR1")]
            await world.control.want(order(members=of(0, changes=2)))
            await asyncio.sleep(30.0)
        assert world.host.signals == [(KEY, "SIGUSR1"), (KEY, "SIGUSR1")]
        assert world.host.members[KEY].changes == 2
        assert world.host.starts == [KEY, RunKey("job-1", 1, 1)]
        assert world.alive() == [KEY]

    story(tell)


def test_a_runtime_that_cannot_show_members_is_asked_again_and_the_run_lives() -> None:
    async def tell(world: World) -> None:
        tries = 0

        def hide(_: StartRun) -> str:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise RuntimeUnavailableError("the engine is away")
            return "members: Is a directory" if tries < 5 else ""

        async with world.executor():
            await world.control.want(order(members=ALONE))
            await world.control.hears(KEY, "running")
            await asyncio.sleep(1.0)
            world.host.hide = hide
            await world.control.want(order(members=BOTH))
            await asyncio.sleep(8.0)
            assert world.control.seen[KEY].not_applied == "members: Is a directory"
            await asyncio.sleep(60.0)
            assert world.control.seen[KEY].not_applied == ""
            assert world.host.members[KEY] == BOTH
            assert world.host.signals == [(KEY, "SIGUSR1")]
            assert world.alive() == [KEY]

    story(tell)


# ── the file ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    os.mkdir(made.run(KEY))
    return made


def test_the_file_says_all_that_a_rank_needs_and_every_user_may_read_it(home: Home) -> None:
    before = os.umask(0o077)
    try:
        assert files.show(home, KEY, BOTH)
    finally:
        os.umask(before)
    path = Path(home.members(KEY))
    assert json.loads(path.read_text()) == {
        "changes": 1,
        "ranks": [
            {"role": "worker", "rank": 0, "address": "10.0.0.1", "port": 2345},
            {"role": "worker", "rank": 1, "address": "10.0.0.1", "port": 2346},
        ],
        "least": 1,
        "most": 8,
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_file_that_is_right_is_not_written_again(home: Home) -> None:
    files.show(home, KEY, BOTH)
    inode = os.stat(home.members(KEY)).st_ino
    assert not files.show(home, KEY, BOTH)
    assert os.stat(home.members(KEY)).st_ino == inode
    assert not files.show(home, KEY, replace(BOTH, most=9))  # Replaced, but nobody joined or left.
    assert json.loads(Path(home.members(KEY)).read_text())["most"] == 9
    assert files.show(home, KEY, ALONE)
    assert os.listdir(home.run(KEY)) == ["members.json"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", '{"changes": "many"}', '{"changes": 1e400}', "[" * 200_000, '{"a":' * 200_000, "\xff" * 99],
)
def test_a_file_that_the_job_spoilt_is_replaced(home: Home, text: str) -> None:
    Path(home.members(KEY)).write_bytes(text.encode("latin-1"))
    assert files.show(home, KEY, BOTH)
    assert json.loads(Path(home.members(KEY)).read_text())["changes"] == 1


def test_what_a_job_put_there_is_replaced_and_nothing_is_followed(home: Home, tmp_path: Path) -> None:
    path, elsewhere = Path(home.members(KEY)), tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    path.symlink_to(elsewhere)
    assert files.show(home, KEY, BOTH)
    assert (elsewhere.read_text(), path.is_symlink()) == ("kept", False)
    path.unlink()
    os.mkfifo(path)
    assert files.show(home, KEY, BOTH)
    assert path.is_file()
    path.unlink()
    os.link(elsewhere, path)
    assert files.show(home, KEY, BOTH)
    assert elsewhere.read_text() == "kept"


def test_a_folder_there_is_an_error_and_stays(home: Home) -> None:
    with swept(Path(home.run(KEY))):
        make_deep(Path(home.members(KEY)), 50)
        with pytest.raises(IsADirectoryError) as error:
            files.show(home, KEY, BOTH)
        assert files.why_not(error.value) == "members: Is a directory"
        assert not (home.root / "members.new").exists()


def test_a_run_folder_that_became_a_link_is_not_followed(home: Home, tmp_path: Path) -> None:
    os.rmdir(home.run(KEY))
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", home.run(KEY))
    with pytest.raises(OSError):  # noqa: PT011 - which one is the kernel's choice
        files.show(home, KEY, BOTH)
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_full_disk_is_an_error_and_the_old_file_stays_whole(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    files.show(home, KEY, ALONE)
    monkeypatch.setattr(os, "write", lambda _fd, data: len(data) - 1)
    with pytest.raises(OSError, match="No space"):
        files.show(home, KEY, BOTH)
    monkeypatch.undo()
    assert json.loads(Path(home.members(KEY)).read_text())["changes"] == 0
    assert files.show(home, KEY, BOTH)


def test_a_signal_that_no_job_can_ask_for_is_not_sent() -> None:
    assert files.signal_of(of(0, signal="")) is None
    assert files.signal_of(of(0, signal="SIGHUP")) == "SIGHUP"
    with pytest.raises(ValueError, match="SIGKILL"):
        files.signal_of(of(0, signal="SIGKILL"))


def test_a_pid_that_is_not_of_this_container_has_no_child() -> None:
    assert signalling.only_child(os.getpid(), "f" * 64) is None
    assert signalling.only_child(2**22 + 1) is None


MASKED = {"SigBlk": 0, "SigIgn": 0, "SigCgt": 0}
USR1, SEGV = 1 << 9, 1 << 10


@pytest.mark.parametrize(
    ("masks", "handled"),
    [
        ({}, False),
        ({"SigCgt": USR1}, True),
        ({"SigIgn": USR1}, True),
        ({"SigBlk": USR1}, True),  # It waits for its signals.
        ({"SigBlk": USR1 | SEGV}, False),  # It forks.
        ({"SigBlk": USR1 | SEGV, "SigCgt": USR1}, True),
        ({"SigCgt": USR1 << 2}, False),
    ],
)
def test_a_process_is_signalled_only_if_the_signal_does_not_end_it(
    masks: dict[str, int], handled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Name:\ta: b\n" + "".join(f"{name}:\t{mask:016x}\n" for name, mask in {**MASKED, **masks}.items())
    monkeypatch.setattr(Path, "read_text", lambda _: text)
    assert signalling.handles(1, ResizeSignal.USR1) is handled
