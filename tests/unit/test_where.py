"""The expressions by which a job chooses nodes by their labels, and the labels and taints of nodes."""

from random import Random

import pytest

from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.labels import LABELS_MAX, Marking, changed, labels_of
from weft.domain.labels.where import DEPTH_MAX, TESTS_MAX, WhereError, matches, parsed
from weft.domain.spec import WHERE_CHARACTERS_MAX

HERE = {"zone": "a", "nvlink": "", "acme.com/rack": "r 7"}


@pytest.mark.parametrize(
    "text",
    [
        "zone == 'a'",
        'zone == "a" && nvlink',
        "zone != 'b'",
        "disk != 'fast'",  # a label that the node does not have is none of all values
        "zone in ['b', 'a']",
        "!slow && (zone == 'b' || nvlink)",
        "slow || zone=='a'&&nvlink",
        "!(zone == 'b' || slow)",
        "!!nvlink",
        "acme.com/rack == 'r 7'",
        "  \n zone\t== 'a' ",
        "nvlink == ''",
    ],
)
def test_an_expression_matches(text: str) -> None:
    assert matches(text, HERE)


@pytest.mark.parametrize(
    "text",
    [
        "zone == 'b'",
        "zone != 'a'",
        "slow",
        "!nvlink",
        "zone in ['b']",
        "slow && nvlink || zone == 'b'",
        "disk == ''",  # a label without a value is another thing than no label
        "(slow || nvlink) && zone != 'a'",
    ],
)
def test_an_expression_does_not_match(text: str) -> None:
    assert not matches(text, HERE)


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("zone = 'a'", 6, "did you mean `==`"),
        ("zone == a", 9, "a value in quotes"),
        ("zone == 'a", 9, "no closing '"),
        ("zone == 'a' & nvlink", 13, "did you mean `&&`"),
        ("zone == 'a' nvlink", 13, "expected `&&`, `||` or the end, got `nvlink`"),
        ("(zone == 'a'", 13, "expected `)` for the `(` at character 1, got the end"),
        ("zone in 'a'", 9, "expected `[`"),
        ("zone in []", 10, "a value in quotes"),
        ("", 1, "expected a label"),
        ("nvlink &&", 10, "expected a label"),
        ("zone == 'a\x00'", 9, "control character"),
        ("#", 1, "neither a label"),
        ("-x", 1, "neither a label"),
        ("x" * 64, 1, "neither a label"),
        ("!" * (DEPTH_MAX + 1) + "a", DEPTH_MAX + 1, "levels"),
        ("||".join(["a"] * (TESTS_MAX + 1)), 3 * TESTS_MAX + 1, "more than 64 labels"),
        ("||".join(["!!!a"] * (TESTS_MAX // 4 + 1)), 6 * (TESTS_MAX // 4) + 1, "more than 64 labels"),
        ("a" + " " * WHERE_CHARACTERS_MAX, WHERE_CHARACTERS_MAX + 1, "at most"),
    ],
)
def test_a_mistake_is_named_with_its_position(text: str, position: int, words: str) -> None:
    with pytest.raises(WhereError) as caught:
        parsed(text)
    assert (caught.value.position, words in caught.value.reason) == (position, True), caught.value
    assert not matches(text, HERE) or not text, "what cannot be read matches no node"


def test_whatever_is_written_is_an_expression_or_a_mistake_with_a_position_in_it() -> None:
    """Random texts of the words of the language, and of others: none hangs, and none raises anything else."""
    dice = Random(7)
    words = [
        "zone",
        "in",
        "==",
        "!=",
        "&&",
        "||",
        "!",
        "(",
        ")",
        "[",
        "]",
        ",",
        "'a'",
        '"',
        "'",
        "\\",
        " ",
        "\x00",
        "ö",
    ]
    for _ in range(5000):
        text = "".join(dice.choice(words) for _ in range(dice.randint(0, 60)))
        position = 1
        try:
            parsed(text)(HERE)
        except WhereError as error:
            position = error.position
        assert 1 <= position <= len(text) + 1, text


def test_a_job_file_with_a_wrong_expression_is_refused_by_its_field() -> None:
    with pytest.raises(SpecError) as caught:
        decode_spec(b'{"name": "train", "command": ["x"], "where": "zone == a"}')
    assert caught.value.field == "where"
    assert "character 9" in caught.value.reason


@pytest.mark.parametrize("taint", ["", "a b", "-x", "spot=\n", "**"])
def test_a_job_file_with_a_wrong_taint_is_refused_by_its_field(taint: str) -> None:
    with pytest.raises(SpecError) as caught:
        decode_spec(b'{"name": "train", "command": ["x"], "tolerate": [%s]}' % repr(taint).replace("'", '"').encode())
    assert caught.value.field == "tolerate[0]"


def test_an_operators_labels_win_over_those_of_the_node() -> None:
    marking = Marking(labels={"zone": "b", "old": None}).then(Marking(labels={"zone": "c"}))
    assert changed({"zone": "a", "old": "", "rack": "7"}, marking.labels) == {"rack": "7", "zone": "c"}
    assert marking.text == "labels zone=c, no old"


@pytest.mark.parametrize(
    "words", [["zone=a", "zone=b"], ["zone=a\n"], ["="], ["a b"], [f"n{n}" for n in range(LABELS_MAX + 1)]]
)
def test_wrong_labels_of_a_setting_are_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"expected NAME|twice|at most"):
        labels_of(words)
