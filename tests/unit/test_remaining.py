"""Which of a stopped run's remaining processes get SIGTERM now."""

from hypothesis import given
from hypothesis import strategies as st

from weftd.executor.runtime.process.remaining import READING_LOOKS, LiveProcess, StopOrder


def process(pid: int, parent: int = 1, *, reads: str = "", writes: tuple[str, ...] = ()) -> LiveProcess:
    return LiveProcess(pid=pid, began=pid, parent=parent, reads=reads, writes=frozenset(writes))


def pids(found: list[LiveProcess]) -> list[int]:
    return [one.pid for one in found]


def due(found: list[LiveProcess], told: set[tuple[int, int]]) -> list[LiveProcess]:
    return StopOrder().due(found, told)


def test_a_child_of_one_that_remains_waits_for_its_parent() -> None:
    trainer, worker = process(10), process(11, 10)
    assert pids(due([trainer, worker], set())) == [10]
    assert pids(due([trainer, worker], {trainer.identity})) == []
    assert pids(due([worker], {trainer.identity})) == [11]


def test_a_reader_of_a_pipe_waits_for_its_writer_and_has_time_to_read_the_rest() -> None:
    trainer, tee = process(10, writes=("pipe:[1]",)), process(11, reads="pipe:[1]")
    order = StopOrder()
    assert pids(order.due([trainer, tee], set())) == [10]
    for _ in range(READING_LOOKS):
        assert order.due([tee], {trainer.identity}) == [], "it may still read"
    assert pids(order.due([tee], {trainer.identity})) == [11]


def test_a_ring_of_pipes_is_asked_as_a_whole() -> None:
    one = process(10, reads="pipe:[1]", writes=("pipe:[2]",))
    other = process(11, reads="pipe:[2]", writes=("pipe:[1]",))
    assert pids(due([one, other], set())) == [10, 11]


def test_a_process_that_took_the_pid_of_one_that_was_asked_is_asked() -> None:
    assert pids(due([process(10)], {(10, 9)})) == [10]


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_every_process_is_asked_once_when_those_that_are_asked_end(drawn: list[tuple[int, int, int]]) -> None:
    found = [
        process(pid, parent if parent != pid else 0, reads=f"pipe:{reads}" if reads else "", writes=(f"pipe:{writes}",))
        for pid, (parent, reads, writes) in enumerate(drawn, start=1)
    ]
    order, told = StopOrder(), set[tuple[int, int]]()
    while found:
        looks = (order.due(found, told) for _ in range(READING_LOOKS + 1))
        now: list[LiveProcess] = next(filter(None, looks), [])
        assert now, "somebody is asked while nobody that was asked is left"
        assert not told & {one.identity for one in now}
        told |= {one.identity for one in now}
        found = [one for one in found if one.identity not in told]
