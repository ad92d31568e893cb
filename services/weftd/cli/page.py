"""The output of a command: JSON on request, else a page for a person or plain text for a pipe.

Texts of a server and of files are in all of it: none leaves here with a character that steers a terminal.
"""

import argparse
import codecs
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TextIO

import msgspec

from weft.client.terminal import cleaned
from weftd.cli.formatting import clean_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from weftd.cli.rendering.context import RenderContext
    from weftd.cli.screen import Screen

_PLAIN_WIDTH = 10_000  # a pipe has no width: nothing is broken or cut
_LOOKALIKES = {"━": "#", "╸": "=", "─": "-", "·": ".", "■": "#", "▐": "[", "▌": "]", "…": "~", "×": "x"}
# What JSON leaves as it is: DEL and the C1 controls, and what shows text in another order or breaks a line.
_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def context(stream: TextIO | None = None) -> "RenderContext":
    """The look of this stream, now."""
    from weftd.cli.rendering.context import RenderContext  # imports rich, which is slow to import

    screen = console(stream or sys.stdout)
    return RenderContext(now=time.time(), width=screen.width, bars=screen.is_terminal)


def console(stream: TextIO) -> "Screen":
    """A screen for this stream: as wide as the terminal, or without a width. Characters that it lacks become ASCII."""
    from weftd.cli.screen import Screen  # imports rich, too

    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="weft-lookalikes")
    width = None if stream.isatty() else _PLAIN_WIDTH
    return Screen(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def show(drawn: "RenderableType") -> None:
    """Print one page on stdout, without the blanks at the ends of lines, which come from columns."""
    screen = console(sys.stdout)
    with screen.capture() as captured:
        screen.print(drawn)
    text = captured.get()
    if not screen.is_terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a remark for the person at the terminal; not if stderr is a file or a pipe."""
    if sys.stderr.isatty():
        console(sys.stderr).print(text, style="dim")


def remark(text: str) -> None:
    """Print a remark about the answer on stderr, for scripts too."""
    print(clean_lines(text), file=sys.stderr)


def notes_option(parser: argparse.ArgumentParser) -> None:
    """The option of every command that submits a job."""
    what = "do not print notes about the environment of jobs (or WEFT_NO_NOTES=1)"
    parser.add_argument("--no-notes", action="store_true", help=what)


def notes_on(args: argparse.Namespace, notes: Iterable[str]) -> None:
    """Print the notes about what was submitted, unless the user has asked for none."""
    if args.no_notes or os.environ.get("WEFT_NO_NOTES", "0") not in ("", "0"):
        return
    for text in notes:
        remark(f"note: {text}")


def json_line(value: object) -> None:
    """One JSON document: on a terminal indented, else on one line."""
    encoded = msgspec.json.encode(value)
    if sys.stdout.isatty():
        encoded = msgspec.json.format(encoded, indent=2)
    write(harmless(encoded) + b"\n")


def harmless(document: bytes) -> bytes:
    """The same JSON without characters that would steer a terminal: those that it has are escaped."""
    if document.isascii() and b"\x7f" not in document:
        return document
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", document.decode()).encode()


def text(document: bytes) -> None:
    """A document that is no JSON: as it is, but on a terminal without what would steer it."""
    write(cleaned(document).encode() if sys.stdout.isatty() else document)


def write(text: bytes) -> None:
    """All of these bytes, as they are, now; where stdout has no buffer, one write may take a part of them only."""
    left = memoryview(text)
    while left:
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()


def answered(args: argparse.Namespace, value: object, text: str) -> None:
    """Print the API's answer to a change: as JSON, or as a sentence."""
    if args.json:
        json_line(value)
    else:
        print(clean_lines(text), flush=True)


def drawn(
    args: argparse.Namespace, value: object, draw: "Callable[[RenderContext], RenderableType]", none: str = ""
) -> None:
    """Print the API's answer to a question: as JSON, drawn, or, of an empty one, the note `none`."""
    if args.json:
        json_line(value)
    elif none:
        note(none)
    else:
        show(draw(context()))


def _lookalikes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_LOOKALIKES.get(char, "?") for char in missing), error.end


codecs.register_error("weft-lookalikes", _lookalikes)
