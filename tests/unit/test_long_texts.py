"""Long texts of updates in records: their lengths and whether they are equal are kept, and nothing else."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from weftd.scheduler.thinking.record.long_texts import LONG_BYTES, filler, marked, marked_again

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=300)


@given(text=texts)
def test_a_filler_has_the_length_of_its_text_and_the_same_mark(text: str) -> None:
    mark = marked(text)
    made = filler(mark)
    assert len(msgspec.json.encode(made)) == len(msgspec.json.encode(text))
    assert marked_again(made) == mark
    assert (mark == text) == (len(msgspec.json.encode(text)) <= LONG_BYTES)


@given(one=texts, other=texts)
def test_fillers_are_equal_where_the_texts_are(one: str, other: str) -> None:
    assert (filler(marked(one)) == filler(marked(other))) == (one == other)
    assert filler(marked(one)) == filler(marked(str(one)))
