"""The console on which pages are drawn. It imports rich, which is slow to import, and many commands draw nothing."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from weftd.cli.formatting import clean_lines


class Screen(Console):
    """Prints every text without control characters, whatever drawing it is part of."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            harms = not segment.control and not segment.text.isprintable()
            yield segment._replace(text=clean_lines(segment.text)) if harms else segment
