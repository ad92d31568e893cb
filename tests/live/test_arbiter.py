"""The arbiter as a process, with real sockets: shares, deaths on either side, and jobs that mean harm."""

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.arbiters import (
    SECONDS_MAX,
    Peer,
    arbiter,
    holding,
    remove_slot,
    saturating,
    shared,
    start_arbiter,
    turns_of,
    within,
)
from weft.sharing import pages, slots
from weft.sharing.pages import ENTRIES_AT, Flag
from weft.sharing.wire import Op


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A short path, as sockets need."""
    link = Path(f"/tmp/weft-arbiter-{os.getpid()}-{time.monotonic_ns() % 1_000_000}")
    link.symlink_to(tmp_path)
    (link / "r").mkdir()
    yield link / "r"
    link.unlink()


Connect = Callable[..., Peer]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connections that are closed at the end."""
    with ExitStack() as stack:

        def connect_one(job: Path, **more: Any) -> Peer:
            return stack.enter_context(closing(Peer(job, **more)))

        yield connect_one


def parts(turns: dict[str, list[tuple[float, int]]], begin: float, end: float) -> dict[str, float]:
    """How much of all used time each slot used."""
    used = {name: sum(us for at, us in found if begin <= at < end) for name, found in turns.items()}
    return {name: us / max(1, sum(used.values())) for name, us in used.items()}


def flags(job: Path) -> Flag:
    limits = pages.read_limits((job / slots.LIMITS).read_bytes())
    assert limits is not None
    return limits.flags


@pytest.mark.alone
def test_two_slots_have_their_parts_and_others_at_once_when_the_shares_change(root: Path) -> None:
    with arbiter(root):
        a, b = slots.make_slot(root, "a", shared(700)), slots.make_slot(root, "b", shared(300))
        began = time.monotonic()
        processes = {"a": saturating(a, 5.0), "b": saturating(b, 5.0)}
        time.sleep(2.7)
        slots.make_slot(root, "a", shared(200))
        slots.make_slot(root, "b", shared(800))
        turns = {name: turns_of(process) for name, process in processes.items()}
    start = max(found[0][0] for found in turns.values())
    before, after = parts(turns, start, began + 2.7), parts(turns, began + 2.9, start + 4.5)
    assert before["a"] == pytest.approx(0.7, abs=0.12)
    assert after["a"] == pytest.approx(0.2, abs=0.12)
    all_turns = sorted((at, us) for found in turns.values() for at, us in found)
    for (at, us), (following, _) in itertools.pairwise(all_turns):
        assert following >= at + us / 1e6 - 0.001, "two turns at once"


@pytest.mark.alone
def test_the_turn_of_a_killed_process_is_free_at_once(root: Path, connect: Connect) -> None:
    with arbiter(root):
        a, b = slots.make_slot(root, "a", shared(500)), slots.make_slot(root, "b", shared(500))
        other = connect(b)
        waits: list[float] = []
        for _ in range(10):
            victim = holding(a)
            other.say(Op.WANT)
            time.sleep(0.01)
            began = time.monotonic()
            victim.kill()
            granted = other.granted()
            waits.append(time.monotonic() - began)
            victim.communicate()
            other.say(Op.RETURN, turn=granted.turn)
        assert sorted(waits)[5] < 0.1


@pytest.mark.alone
def test_an_arbiter_that_is_killed_finds_everything_again(root: Path) -> None:
    job = slots.make_slot(root, "a", shared(700, memory=1 << 30))
    other = slots.make_slot(root, "b", shared(300))
    first = start_arbiter(root)
    within(60, (job / slots.SOCKET).exists)
    processes = {"a": saturating(job, 6.0), "b": saturating(other, 6.0)}
    inode = (job / slots.USE).stat().st_ino, (job / slots.LIMITS).stat().st_ino
    time.sleep(1.5)
    first.kill()
    first.wait()
    time.sleep(0.3)
    with arbiter(root):
        turns = {name: turns_of(process) for name, process in processes.items()}
        assert ((job / slots.USE).stat().st_ino, (job / slots.LIMITS).stat().st_ino) == inode
    end = max(at for found in turns.values() for at, _ in found)
    assert parts(turns, end - 2, end)["a"] == pytest.approx(0.7, abs=0.12)


def test_a_second_arbiter_of_a_root_ends_by_itself(root: Path) -> None:
    with arbiter(root):
        slots.make_slot(root, "a", shared(1000))
        within(60, (root / "a/job/socket").exists)
        assert start_arbiter(root).wait(60) == 3


def test_a_hold_and_a_cap_are_in_the_page_and_the_turn_is_revoked(root: Path, connect: Connect) -> None:
    with arbiter(root):
        job = slots.make_slot(root, "a", shared(500))
        peer = connect(job)
        turn = peer.turn().turn
        slots.make_slot(root, "a", shared(500, hold=True, memory=7, closed=True))
        assert (peer.hear().op, turn) == (Op.REVOKE, turn)
        assert flags(job) == Flag.GATED | Flag.HOLD | Flag.CAPPED | Flag.CLOSED
        peer.say(Op.WANT)
        peer.say(Op.RETURN, turn=turn)
        peer.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            peer.hear()
        slots.make_slot(root, "a", shared(500))
        peer.socket.settimeout(SECONDS_MAX)
        assert peer.hear().op == Op.GRANT
        assert flags(job) == Flag.GATED


@pytest.mark.alone
def test_it_beats(root: Path) -> None:
    with arbiter(root):
        job = slots.make_slot(root, "a", shared(500))
        within(60, (job / slots.LIMITS).exists)
        beats: set[int] = set()
        end = time.monotonic() + 2
        while time.monotonic() < end:
            limits = pages.read_limits((job / slots.LIMITS).read_bytes())
            assert limits is not None
            beats.add(limits.beat_ns)
            time.sleep(0.02)
        assert len(beats) >= 6


def test_a_removed_slot_is_dropped_and_one_of_its_name_is_another(root: Path, connect: Connect) -> None:
    with arbiter(root):
        for _ in range(3):
            peer = connect(slots.make_slot(root, "a", shared(500)))
            assert peer.turn().op == Op.GRANT
            remove_slot(root, "a")
            with pytest.raises(EOFError):
                peer.hear()


def test_it_ends_with_its_root(root: Path) -> None:
    process = start_arbiter(root)
    job = slots.make_slot(root, "a", shared(500))
    within(60, (job / slots.SOCKET).exists)
    remove_slot(root, "a")
    root.rmdir()
    assert process.wait(60) == 0
    root.mkdir()


@pytest.mark.parametrize("text", ["", "{", '{"gpu": 1}', '{"gpu": "g", "request": 5000}', "[" * 60_000])
def test_a_share_that_cannot_be_read_changes_nothing(root: Path, connect: Connect, text: str) -> None:
    with arbiter(root):
        peer = connect(slots.make_slot(root, "a", shared(500)))
        log = root.parent / "arbiter.log"
        within(60, lambda: "a slot is served" in log.read_text())  # its socket is there before its share is read
        (root / "a" / slots.SHARE).write_text(text)
        slots.make_slot(root, "good", shared(500))
        assert connect(root / "good/job").turn().op == Op.GRANT
        time.sleep(0.1)
        peer.say(Op.WANT)  # the slot is still served
    assert "stays as it was" in log.read_text()


def test_a_slot_that_begins_with_a_bad_share_is_served_once_it_is_good(root: Path, connect: Connect) -> None:
    with arbiter(root):
        job = slots.make_slot(root, "a", shared(500))
        remove_slot(root, "a")
        (root / "a" / "job").mkdir(parents=True)
        (root / "a" / slots.SHARE).write_text("{")
        time.sleep(0.2)
        assert connect(slots.make_slot(root, "b", shared(500))).turn().op == Op.GRANT
        slots.write_share(root / "a", shared(500))
        assert connect(job).turn().op == Op.GRANT


def test_requests_beyond_the_gpu_are_served(root: Path, connect: Connect) -> None:
    with arbiter(root):
        peers = [connect(slots.make_slot(root, f"s{number}", shared(900))) for number in range(4)]
        for peer in peers:
            peer.say(Op.WANT)
        for _ in peers:
            within(60, lambda: any(_is_granted(peer) for peer in peers))


def _is_granted(peer: Peer) -> bool:
    peer.socket.settimeout(0.5)
    with suppress(TimeoutError):
        while (message := peer.hear()).op != Op.GRANT:
            pass
        peer.say(Op.RETURN, turn=message.turn)
        return True
    return False


# entries of the use page


def claim(job: Path, place: int, pid: int, memory: int) -> None:
    """As a process does through its mapping."""
    with (job / slots.USE).open("r+b") as page:
        page.seek(ENTRIES_AT + place * pages.ENTRY_BYTES)
        page.write(pid.to_bytes(4, "little") + (1).to_bytes(4, "little") + memory.to_bytes(8, "little"))


def used(job: Path) -> list[tuple[int, int]]:
    use = pages.read_use((job / slots.USE).read_bytes())
    assert use is not None
    return [(entry.place, entry.memory) for entry in use.entries]


def test_the_memory_of_a_process_is_free_when_its_connection_ends(root: Path, connect: Connect) -> None:
    with arbiter(root):
        job = slots.make_slot(root, "a", shared(500))
        within(60, (job / slots.SOCKET).exists)
        claim(job, 0, 41, 100)
        claim(job, 5, 42, 200)
        first, second = connect(job, entry=0, pid=41), connect(job, entry=5, pid=42)
        second.turn()
        first.close()
        within(60, lambda: used(job) == [(5, 200)])
        claim(job, 5, 43, 300)  # the process gave its entry back itself, and another took it
        second.close()
        time.sleep(0.2)
        assert used(job) == [(5, 300)]
        within(60, lambda: used(job) == [])  # which never connected


def test_what_was_seen_is_told(root: Path, connect: Connect) -> None:
    with arbiter(root):
        job = slots.make_slot(root, "a", shared(500))
        within(60, (job / slots.SOCKET).exists)
        claim(job, 3, 41, 100)
        peer = connect(job, entry=3, pid=1)
        peer.use(peer.turn())

        def told() -> bool:
            seen = slots.read_seen(root / "a")
            return seen is not None and seen.turns >= 1 and seen.memory == 100

        within(60, told)
        seen = slots.read_seen(root / "a")
        assert seen is not None
        assert seen.pids == (os.getpid(),)  # not the one that it claims to be
        assert seen.device_us > 0


# jobs that mean harm


def neighbour(root: Path, connect: Connect) -> Peer:
    return connect(slots.make_slot(root, "neighbour", shared(500)))


def is_served(peer: Peer) -> bool:
    """Whether a neighbour has turns without long waits."""
    waits: list[float] = []
    for _ in range(20):
        began = time.monotonic()
        granted = peer.turn()
        waits.append(time.monotonic() - began)
        peer.say(Op.RETURN, turn=granted.turn, a=10)
    return sorted(waits)[10] < 0.1


@pytest.mark.alone
def test_garbage_and_half_messages_end_that_connection_only(root: Path, connect: Connect) -> None:
    with arbiter(root):
        job, good = slots.make_slot(root, "bad", shared(500)), neighbour(root, connect)
        for data in (b"x", b"", b"\xff" * 32, b"\0" * 31, b"\0" * 33, b"\x11" + b"\0" * 31, os.urandom(60_000)):
            bad, sibling = connect(job), connect(job)
            bad.socket.send(data)
            with pytest.raises(EOFError):
                bad.hear()
            assert is_served(good)
            sibling.close()


@pytest.mark.alone
def test_a_flood_of_messages_is_dropped_and_the_neighbours_go_on(root: Path, connect: Connect) -> None:
    with arbiter(root):
        job, good = slots.make_slot(root, "bad", shared(500)), neighbour(root, connect)
        bad = connect(job)
        with pytest.raises(OSError):  # noqa: PT011, PT012 - a broken pipe, or a reset
            for _ in range(1_000_000):
                bad.say(Op.CHARGE, a=2**64 - 1)
        assert is_served(good)


@pytest.mark.alone
def test_turns_of_others_and_numbers_out_of_bounds_do_nothing(root: Path, connect: Connect) -> None:
    with arbiter(root):
        job, good = slots.make_slot(root, "bad", shared(500)), neighbour(root, connect)
        turn, bad = good.turn().turn, connect(job)
        for number in (turn, 0, 2**64 - 1):
            bad.say(Op.RETURN, turn=number, a=2**64 - 1, b=2**64 - 1)
            bad.say(Op.HELLO, a=number)
            bad.say(Op.WANT, a=number)
        good.socket.settimeout(0.05)
        with suppress(TimeoutError):
            assert good.hear().op == Op.REVOKE  # it is contended now, but its own still
        good.socket.settimeout(SECONDS_MAX)
        good.say(Op.RETURN, turn=turn)
        assert bad.hear().op == Op.GRANT


@pytest.mark.alone
def test_ten_thousand_connections_leave_the_neighbours_served(root: Path, connect: Connect) -> None:
    with arbiter(root):
        job, good = slots.make_slot(root, "bad", shared(500)), neighbour(root, connect)
        is_served(good)
        opened: list[socket.socket] = []
        for number in range(10_000):
            bad = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            bad.setblocking(False)
            with suppress(OSError):
                bad.connect(str(job / slots.SOCKET))
            if number % 2 and len(opened) < 200:
                opened.append(bad)
            else:
                bad.close()
            if number % 2_500 == 0:
                assert is_served(good)
        assert is_served(good)
        for bad in opened:
            bad.close()

        def is_back() -> bool:
            with suppress(EOFError, OSError):
                return connect(job, seconds=0.1).turn().op == Op.GRANT
            return False

        within(60, is_back)


@pytest.mark.alone
def test_a_client_that_never_reads_is_dropped(root: Path, connect: Connect) -> None:
    with arbiter(root):
        job, good = slots.make_slot(root, "bad", shared(1000)), neighbour(root, connect)
        bad = connect(job)
        with suppress(OSError):
            for turn in range(1, 3_000):
                bad.say(Op.WANT)
                bad.say(Op.RETURN, turn=turn)
                if turn % 50 == 0:
                    time.sleep(0.02)
        assert is_served(good)


@pytest.mark.alone
def test_whatever_a_job_makes_of_its_folder_the_others_are_served(root: Path, connect: Connect) -> None:
    with arbiter(root):
        good = neighbour(root, connect)
        job = slots.make_slot(root, "bad", shared(500))
        within(60, (job / slots.SOCKET).exists)
        os.truncate(job / slots.LIMITS, 0)
        os.truncate(job / slots.USE, 0)
        bad = connect(job, entry=3)
        bad.turn()
        bad.close()
        for name in (slots.LIMITS, slots.USE, slots.SOCKET):
            (job / name).unlink()
        os.mkfifo(job / slots.USE)
        (job / slots.LIMITS).symlink_to("/etc/passwd")
        (job / slots.SOCKET).mkdir()
        (job / slots.SOCKET / "full").write_text("")
        time.sleep(1.2)
        assert is_served(good)
    before = Path("/etc/passwd").read_bytes()
    with arbiter(root):
        assert connect(job).turn().op == Op.GRANT  # made anew
        assert Path("/etc/passwd").read_bytes() == before
        assert is_served(connect(root / "neighbour/job"))
        remove_slot(root, "bad")
