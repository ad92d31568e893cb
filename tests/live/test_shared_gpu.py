"""The real hook, the real arbiter and the emulated GPU together: two jobs, their split, and what happens to it."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.bench.sharing.rig import Rig, ready, rig
from tests.bench.sharing.shares import seconds_of
from tests.support import compiled
from weft.sharing import native, slots

pytestmark = pytest.mark.alone


@pytest.fixture
def shared_gpu() -> Iterator[Rig]:
    built = compiled.build()
    if isinstance(built, native.NotBuilt):
        if os.environ.get("CI"):
            pytest.fail(built.reason)
        pytest.skip(built.reason)
    with rig() as made:
        yield made


def parts(gpu: Rig, *pids: int, seconds: float = 1.5) -> tuple[float, ...]:
    """The part of each process in the device time that was used, by the device's own account."""
    return next(seconds_of(gpu.watch(seconds), pids, length=seconds)).parts


def test_two_saturated_jobs_have_70_and_30_and_the_split_changes_while_they_run(shared_gpu: Rig) -> None:
    shared_gpu.share("a", 700)
    shared_gpu.share("b", 300)
    a, b = shared_gpu.job("a", "saturate", 1_000), shared_gpu.job("b", "graph", 100, count=10)
    ready(a, b)
    time.sleep(1)
    assert parts(shared_gpu, a.pid, b.pid)[0] == pytest.approx(0.7, abs=0.12)
    shared_gpu.share("a", 200)
    shared_gpu.share("b", 800)
    time.sleep(0.5)
    assert parts(shared_gpu, a.pid, b.pid)[0] == pytest.approx(0.2, abs=0.12)
    shared_gpu.share("b", 800, hold=True)
    time.sleep(0.2)
    assert parts(shared_gpu, a.pid, b.pid) == pytest.approx((1.0, 0.0), abs=0.001)
    shared_gpu.share("b", 800)
    time.sleep(0.5)
    assert parts(shared_gpu, a.pid, b.pid)[0] == pytest.approx(0.2, abs=0.12)


def test_a_limit_holds_though_the_gpu_is_idle(shared_gpu: Rig) -> None:
    shared_gpu.share("a", 300, limit=300)
    job = shared_gpu.job("a", "saturate", 1_000)
    ready(job)
    time.sleep(1)
    seconds = list(seconds_of(shared_gpu.watch(2.5), [job.pid]))
    assert all(second.total <= 0.4 for second in seconds)
    assert max(second.total for second in seconds) >= 0.2


def test_jobs_go_on_without_the_arbiter_and_share_again_with_the_next(shared_gpu: Rig) -> None:
    shared_gpu.share("a", 800)
    shared_gpu.share("b", 200)
    a, b = shared_gpu.job("a", "saturate", 1_000), shared_gpu.job("b", "saturate", 1_000)
    ready(a, b)
    time.sleep(0.5)
    arbiter = shared_gpu.arbiter
    assert arbiter is not None
    arbiter.kill()
    arbiter.wait()
    time.sleep(0.5)
    free = parts(shared_gpu, a.pid, b.pid, seconds=1.0)
    assert min(free) > 0.25  # nothing holds them to their shares
    shared_gpu.start_arbiter()
    time.sleep(2.5)
    assert parts(shared_gpu, a.pid, b.pid)[0] == pytest.approx(0.8, abs=0.12)


def test_a_closed_job_stops_without_the_arbiter(shared_gpu: Rig) -> None:
    shared_gpu.share("a", 1000, closed=True)
    job = shared_gpu.job("a", "saturate", 1_000)
    ready(job)
    time.sleep(0.5)
    arbiter = shared_gpu.arbiter
    assert arbiter is not None
    arbiter.kill()
    arbiter.wait()
    time.sleep(0.5)
    count = shared_gpu.kernels(job.pid)
    time.sleep(0.5)
    assert shared_gpu.kernels(job.pid) == count
    shared_gpu.start_arbiter()
    time.sleep(2.5)
    assert shared_gpu.kernels(job.pid) > count


def test_the_neighbour_of_killed_jobs_goes_on(shared_gpu: Rig) -> None:
    shared_gpu.share("a", 500)
    shared_gpu.share("b", 500)
    neighbour = shared_gpu.job("a", "saturate", 1_000)
    ready(neighbour)
    for _ in range(10):
        victim = shared_gpu.job("b", "saturate", 1_000)
        ready(victim)
        time.sleep(0.05)
        victim.kill()
    before = shared_gpu.kernels(neighbour.pid)
    time.sleep(0.5)
    assert shared_gpu.kernels(neighbour.pid) > before + 200
    assert neighbour.poll() is None


def test_a_stopped_process_loses_its_turn_and_pays_for_it(shared_gpu: Rig) -> None:
    shared_gpu.share("a", 500)
    shared_gpu.share("b", 500)
    stopped, other = shared_gpu.job("a", "saturate", 1_000), shared_gpu.job("b", "saturate", 1_000)
    ready(stopped, other)
    time.sleep(0.5)
    for _ in range(50):  # until it is stopped while it has the turn
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        before = shared_gpu.kernels(other.pid)
        time.sleep(0.05)
        if shared_gpu.kernels(other.pid) == before:
            break
        stopped.send_signal(signal.SIGCONT)
        time.sleep(0.013)
    time.sleep(2.5)
    seen = slots.read_seen(shared_gpu.root / "a")
    assert seen is not None
    assert seen.overruns >= 1
    before = shared_gpu.kernels(other.pid)
    time.sleep(0.3)
    assert shared_gpu.kernels(other.pid) > before + 100
    stopped.send_signal(signal.SIGCONT)
    time.sleep(2.0)
    assert parts(shared_gpu, stopped.pid, other.pid)[0] == pytest.approx(0.5, abs=0.15)
