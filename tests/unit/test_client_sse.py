"""Server-sent events are read whole, wherever the network cuts them."""

from collections.abc import AsyncIterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from weft.client.http import data_of

STREAM = (
    b'retry: 1000\n\nid: 1-2\nevent: weft.jobs.placed\ndata: {"a": 1}\n\n: beat\n\ndata: {"b":\ndata: 2}\n\ndata: {"cut'
)


async def pieces(*cuts: int) -> AsyncIterator[bytes]:
    edges = [0, *sorted(cuts), len(STREAM)]
    for begin, end in pairwise(edges):
        yield STREAM[begin:end]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
async def test_every_whole_event_is_read_and_no_other(cuts: list[int]) -> None:
    assert [data async for data in data_of(pieces(*cuts))] == [b'{"a": 1}', b'{"b":\n2}']
