"""Which copies of data a node drops, by numbers."""

from hypothesis import given
from hypothesis import strategies as st

from weftd.executor.thinking.caching import Copy, dropped_for


def copy(digest: str, size: int, used_at: float, tenant: str = "alice") -> Copy:
    return Copy(digest=digest, tenant=tenant, size=size, used_at=used_at)


def dropped(size: int, *copies: Copy, bytes_max: int = 10, in_use: tuple[str, ...] = ()) -> str | None:
    found = dropped_for(size, copies, bytes_max=bytes_max, in_use=in_use)
    return None if found is None else "".join(one.digest for one in found)


def test_the_copy_that_was_used_the_longest_ago_goes_and_no_more_than_must() -> None:
    three = (copy("a", 4, 1.0), copy("b", 3, 2.0), copy("c", 3, 3.0))
    assert dropped(0, *three) == ""
    assert dropped(1, *three) == "a"
    assert dropped(4, *three) == "a"
    assert dropped(5, *three) == "ab"
    assert dropped(10, *three) == "abc"


def test_a_copy_in_use_stays_and_what_does_not_fit_beside_it_is_not_copied() -> None:
    three = (copy("a", 4, 1.0), copy("b", 3, 2.0), copy("c", 3, 3.0))
    assert dropped(1, *three, in_use=("a",)) == "b"
    assert dropped(6, *three, in_use=("a",)) == "bc"
    assert dropped(7, *three, in_use=("a",)) is None
    assert dropped(11, *three) is None


def test_the_tenant_with_the_most_bytes_gives_way() -> None:
    held = (copy("b", 2, 1.0, "bob"), copy("x", 5, 2.0), copy("y", 3, 3.0))
    assert dropped(4, *held) == "x"
    assert dropped(6, *held) == "xy", "3 of alice are still more than 2 of bob"
    assert dropped(9, *held) == "xyb"


@given(
    st.lists(st.tuples(st.integers(0, 20), st.floats(0, 9), st.sampled_from("ab"), st.booleans()), max_size=12),
    st.integers(0, 30),
    st.integers(0, 60),
)
def test_whatever_is_cached_a_copy_fits_afterwards_or_nothing_is_dropped(
    rows: list[tuple[int, float, str, bool]], size: int, bytes_max: int
) -> None:
    copies = [copy(str(number), row[0], row[1], row[2]) for number, row in enumerate(rows)]
    in_use = {str(number) for number, row in enumerate(rows) if row[3]}
    found = dropped_for(size, copies, bytes_max=bytes_max, in_use=in_use)
    held = sum(one.size for one in copies if one.digest in in_use)
    if found is None:
        assert held + size > bytes_max
        return
    gone = {one.digest for one in found}
    assert not gone & in_use
    left = sum(one.size for one in copies if one.digest not in gone) + size
    assert left <= bytes_max or not found
    assert not found or left + found[-1].size > bytes_max, "the last one had to go"
