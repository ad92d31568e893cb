"""The commands of `weft` in the documentation: each is one that the command line accepts."""

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.support.tree import ROOT
from weftd.cli import __main__ as cli
from weftd.cli.commands import COMMANDS

PAGES = sorted(
    path
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    if path.name not in ("verbs.md", "events.md")  # a reference, and programs that a live test runs
)
_BLOCK = re.compile(r"^( *)```sh[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PLACEHOLDER = re.compile(r"…|\.\.\.|\[")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of `weft` in the shell blocks of a page, without those that show a placeholder."""
    for block in _BLOCK.finditer(text):
        for line in block[2].replace("\\\n", " ").splitlines():
            try:
                lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
                lexer.whitespace_split = True
                words = list(lexer)
            except ValueError:
                continue  # a text of several lines
            yield from _simple(words)


def _simple(words: list[str]) -> Iterator[list[str]]:
    """The commands of `weft` in one line of a shell."""
    found: list[str] | None = None
    skips = False
    for word in [*words, ";"]:
        if re.fullmatch(r"[|&;()]+", word):
            if found and not any(_PLACEHOLDER.search(part) for part in found):
                yield found
            found = None
        elif re.fullmatch(r"[<>&]+", word):
            skips = True
        elif skips:
            skips = False
        elif found is not None:
            found.append(word)
        elif word == "weft":
            found = []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_command_line_accepts_every_command_of_a_page(page: object) -> None:
    assert isinstance(page, type(ROOT))
    for words in commands(page.read_text()):
        if not words or words[0][0] in "-$" or words[0] == "help":
            continue
        assert words[0] in COMMANDS, f"{page.name}: weft {' '.join(words)}"
        try:
            cli.parse(words[0], words)
        except SystemExit as error:
            pytest.fail(f"{page.name}: weft {' '.join(words)}: exit status {error.code}")


def test_a_wrong_command_of_a_page_would_be_found() -> None:
    page = "```sh\ncd x && weft ps --bad | head  # comment\nweft logs -f …\n  weft top >file\n```"
    assert list(commands(page)) == [["ps", "--bad"], ["top"]]
    with pytest.raises(SystemExit):
        cli.parse("ps", ["ps", "--bad"])
