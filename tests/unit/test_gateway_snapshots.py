"""Values that requests share: how old one may be, and what is read beside them."""

from services.gateway.snapshots import SECONDS, Fresh


class Counted:
    """Reads 1, 2, 3, …; `now` is the time of the test's clock."""

    def __init__(self) -> None:
        self.now, self.reads = 100.0, 0
        self.fresh: Fresh[int] = Fresh(self._read, clock=lambda: self.now)

    async def _read(self) -> int:
        self.reads += 1
        return self.reads


async def test_a_value_is_read_again_when_it_is_too_old() -> None:
    counted = Counted()
    assert [await counted.fresh.get(), await counted.fresh.get()] == [1, 1]
    counted.now += SECONDS
    assert await counted.fresh.get() == 2


async def test_what_is_read_aside_is_no_answer_to_a_request() -> None:
    counted = Counted()
    assert await counted.fresh.aside() == 1
    assert await counted.fresh.get() == 2
    assert await counted.fresh.get() == 2


async def test_what_a_request_has_read_serves_work_aside_and_other_requests() -> None:
    counted = Counted()
    assert [await counted.fresh.get(), await counted.fresh.aside(), await counted.fresh.get()] == [1, 1, 1]
