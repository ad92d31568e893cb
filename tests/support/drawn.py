"""What the command line draws, as lines of text."""

import io
import re
from datetime import UTC

from rich.console import Console, RenderableType

from tests.support.views import NOW
from weftd.cli.rendering.context import RenderContext

TERMINAL = RenderContext(now=NOW, width=120, bars=True, zone=UTC)
PIPE = RenderContext(now=NOW, width=10_000, bars=False, zone=UTC)


def seen(drawn: RenderableType, look: RenderContext = TERMINAL) -> list[str]:
    """The lines as they stand on the screen, without the blanks at their ends."""
    screen = Console(file=io.StringIO(), record=True, width=look.width, force_terminal=look.bars, no_color=True)
    screen.print(drawn)
    return [line.rstrip() for line in screen.export_text().splitlines()]


def line_with(text: str, lines: list[str]) -> str:
    found = [line for line in lines if text in line]
    assert len(found) == 1, f"{text!r} is on {len(found)} lines of {lines}"
    return found[0]


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line)
