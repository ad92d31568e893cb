"""What a job wrote is harmless on a terminal, however it is cut into pieces, and loses no text."""

import pytest

from weft.client.terminal import HELD_MAX, TerminalText, cleaned


def shown(*chunks: bytes) -> str:
    screen = TerminalText()
    return (b"".join(screen.feed(chunk) for chunk in chunks) + screen.close()).decode()


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (b"\x1b]0;owned\x07text", "text"),  # the title of the window
        (b"\x1b]52;c;cm0gLXJmIH4K\x07text", "text"),  # the clipboard
        (b"\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"before\x1b[2J\x1b[Hafter", "beforeafter"),  # clears the screen
        (b"\x1b[8mhidden", "\x1b[8mhidden\x1b[0m"),
        (b"a\x1b[31mred\x1b[0m", "a\x1b[31mred\x1b[0m"),
        (b"a\x1b[1;38;5;12mred", "a\x1b[1;38;5;12mred\x1b[0m"),
        (b"\xc2\x9b2Jtext", "text"),  # CSI as one C1 control
        (b"\xc2\x9d0;title\xc2\x9ctext", "text"),  # OSC as one C1 control
        (b"\x9b2Jtext", "\ufffd2Jtext"),  # the same as a byte that is no UTF-8
        (b"good\rbad", "good\nbad"),  # would hide the first word
        (b"good\r\x1b[Kbad", "good\nbad"),
        (b"line\r\nnext\r\n", "line\nnext\n"),
        (b"10%\x08\x08\x0820%", "10%20%"),
        (b"\x1bc\x1b(0text\x1b7\x1b=\x0e", "text"),  # resets, and another character set
        (b"\x1bP1$r0m\x1b\\text", "text"),
        (b"\x1b[?1049h\x1b[6ntext", "text"),  # another screen; asks where the cursor is
        ("abc\u202e321".encode(), "abc321"),
        (b"tab\tand\xe2\x82\xac\n", "tab\tand\u20ac\n"),
        (b"cut\x1b]0;no end\nnext line\n", "cut]0;no end\nnext line\n"),  # nothing is swallowed
        (b"ends\x1b", "ends"),
    ],
)
def test_text_passes_and_what_steers_the_terminal_does_not(written: bytes, seen: str) -> None:
    assert shown(written) == seen
    assert shown(*(written[at : at + 1] for at in range(len(written)))) == seen


def test_a_sequence_without_end_holds_nothing_back_for_ever() -> None:
    assert len(TerminalText().feed(b"\x1b]0;" + b"x" * (2 * HELD_MAX))) > HELD_MAX


def test_a_short_text_has_no_colours() -> None:
    assert cleaned(b"\x1b[31mred\x1b[0m\x1b]0;t\x07") == "red"


@pytest.mark.parametrize("hostile", [b"\xc2\x9d", b"\x1b]", b"\x1b[", b"\x1b", b"\x1b[0;", b"\r", b"\x1b]\x1b"])
def test_a_log_of_nothing_but_beginnings_costs_no_more_than_others(hostile: bytes) -> None:
    """A quadratic search would take minutes for these."""
    screen = TerminalText()
    for _ in range(4):
        screen.feed(hostile * 100_000)
    screen.close()
