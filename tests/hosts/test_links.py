"""Links of the laboratory that carry one way, or lose a part: seen by datagrams from one host to another."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.hosts.host import Host, LaboratoryError
from tests.hosts.laboratory import Laboratory, Way, why_no_laboratory

SENT = 400
PORT = 7007
SECONDS_MAX = 60.0

LISTEN = f"""
import select, socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
    ear.bind(("", {PORT}))
    print("ready", flush=True)
    heard, all_sent = 0, False
    while heard < {SENT}:
        found, _, _ = select.select([ear] if all_sent else [ear, sys.stdin], [], [], 1.0 if all_sent else None)
        if ear in found:
            ear.recv(100)
            heard += 1
        elif found:
            all_sent = True  # its input has ended
        else:
            break
    print(heard, flush=True)
"""
# One that its own host drops is an error to the sender, and no datagram.
SEND = f"""
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mouth:
    for _ in range({SENT}):
        try:
            mouth.sendto(b"heard?", (sys.argv[1], {PORT}))
        except PermissionError:
            pass
        time.sleep(0.001)
"""

pytestmark = pytest.mark.timeout(SECONDS_MAX)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    if why := why_no_laboratory(engines=False):
        pytest.skip(why)
    with Laboratory(3, engines=False) as made:
        yield made


@pytest.fixture(autouse=True)
def whole(laboratory: Laboratory) -> Iterator[None]:
    yield
    laboratory.mend()


def heard(sender: Host, listener: Host) -> int:
    """How many of the datagrams that were sent arrived."""
    listening = subprocess.Popen(
        listener.inside(sys.executable, "-I", "-S", "-c", LISTEN),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "ready\n"
        sending = sender.inside(sys.executable, "-I", "-S", "-c", SEND, listener.address)
        subprocess.run(sending, check=True, timeout=SECONDS_MAX)
        return int(listening.communicate(timeout=SECONDS_MAX)[0])
    finally:
        listening.kill()
        listening.wait()


def test_a_whole_link_carries_everything(laboratory: Laboratory) -> None:
    first, second, _ = laboratory.hosts
    assert heard(first, second) == SENT


def test_a_deaf_host_is_heard(laboratory: Laboratory) -> None:
    first, second, _ = laboratory.hosts
    laboratory.cut_one_way(first, Way.IN)
    assert heard(second, first) == 0
    assert heard(first, second) == SENT


def test_a_mute_host_hears(laboratory: Laboratory) -> None:
    first, second, _ = laboratory.hosts
    laboratory.cut_one_way(first, Way.OUT)
    assert heard(first, second) == 0
    assert heard(second, first) == SENT


def test_a_bad_line_loses_a_part_each_way_and_others_nothing(laboratory: Laboratory) -> None:
    first, second, third = laboratory.hosts
    laboratory.spoil(first, lost=0.3)
    for one, other in ((first, second), (second, first)):
        assert 0.5 * SENT < heard(one, other) < 0.9 * SENT
    assert heard(second, third) == SENT


def test_mended_links_carry_everything_again(laboratory: Laboratory) -> None:
    first, second, _ = laboratory.hosts
    laboratory.spoil(first, lost=0.5)
    laboratory.cut_one_way(first, Way.OUT)
    laboratory.mend()
    assert heard(first, second) == heard(second, first) == SENT


def test_a_thin_line_carries_less_each_way_until_it_is_mended(laboratory: Laboratory) -> None:
    first, second, _ = laboratory.hosts
    try:
        laboratory.slow(first, bits_per_second=16_000)  # of datagrams of 48 bytes at most 42 a second
    except LaboratoryError as error:
        pytest.skip(f"this kernel has no thin lines: {error}")
    for one, other in ((first, second), (second, first)):
        assert 0 < heard(one, other) < 0.9 * SENT
    laboratory.mend()
    assert heard(first, second) == heard(second, first) == SENT


def test_what_is_done_there_is_in_the_network_of_the_host_and_we_stay_where_we_are(laboratory: Laboratory) -> None:
    first, _, _ = laboratory.hosts
    ours = os.readlink("/proc/thread-self/ns/net")
    theirs = first.there(lambda: os.readlink("/proc/thread-self/ns/net"))
    assert theirs == os.readlink(f"/proc/{first.pid}/ns/net") != ours
    assert os.readlink("/proc/thread-self/ns/net") == ours
    with pytest.raises(ZeroDivisionError):
        first.there(lambda: 1 // 0)


def test_each_start_of_a_host_is_another_boot_with_nothing_in_shared_memory(laboratory: Laboratory) -> None:
    first, second, _ = laboratory.hosts
    look = "cat /proc/sys/kernel/random/boot_id; ls /dev/shm"
    before = first.run(look).split()
    assert len(before) == 1
    assert before != second.run(look).split()
    first.run("touch /dev/shm/left")
    laboratory.off(first)
    laboratory.on(first)
    after = first.run(look).split()
    assert len(after) == 1
    assert after != before


def test_a_part_that_is_none_is_refused(laboratory: Laboratory) -> None:
    first, second, _ = laboratory.hosts
    with pytest.raises(ValueError, match="lost"):
        laboratory.spoil(first, lost=1.5)
    assert heard(first, second) == SENT


def test_a_host_that_was_switched_off_comes_back_with_a_whole_link(laboratory: Laboratory) -> None:
    first, second, _ = laboratory.hosts
    laboratory.cut_one_way(first, Way.IN)
    laboratory.off(first)
    laboratory.on(first)
    assert heard(second, first) == SENT
