"""How much one turn takes in: as much as it has time for."""

import pytest

from weftd.scheduler.thinking.batch_size import BatchSize


def batch_size() -> BatchSize:
    return BatchSize(seconds=0.03, least=25, most=100)


def test_it_is_whole_before_anything_is_known() -> None:
    assert batch_size().limit == 100


def test_of_what_takes_longer_less_is_taken() -> None:
    hungry = batch_size()
    hungry.took(0.1, 100)
    assert hungry.limit == 30
    for _ in range(50):
        hungry.took(3.0, 100)
    assert hungry.limit == 25
    for _ in range(50):
        hungry.took(0.001, 25)
    assert hungry.limit == 100


def test_what_could_not_be_stored_is_halved_until_it_can_be_and_grows_again() -> None:
    hungry = batch_size()
    for _ in range(20):
        hungry.failed()
    assert hungry.limit == 1
    assert hungry.part > 0
    limits: list[int] = []
    for _ in range(20):
        hungry.stored()
        limits.append(hungry.limit)
    assert limits == sorted(limits)
    assert (hungry.limit, hungry.part) == (100, 1.0)


def test_a_few_or_a_clock_that_stands_still_say_nothing() -> None:
    hungry = batch_size()
    hungry.took(5.0, 3)
    hungry.took(0.0, 50)
    hungry.took(-1.0, 50)
    assert hungry.limit == 100


def test_a_few_that_take_long_leave_a_pause_and_the_next_ones_end_it() -> None:
    hungry = batch_size()
    hungry.took(0.1, 2)
    assert hungry.pause == pytest.approx(0.3)
    hungry.took(0.01, 2)
    assert hungry.pause == 0.0
    hungry.took(0.5, 50)
    assert hungry.pause == 0.0, "of many each is quick: fewer of them are taken"
