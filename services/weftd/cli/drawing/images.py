"""Pushed images: their names and sizes, and when they were pushed and used."""

from collections.abc import Sequence

from rich.table import Table

from weft.domain.quantity import size_text
from weft.messages.images import ImageView
from weftd.cli.drawing.look import Look, plain, table
from weftd.cli.words import ago


def image_table(images: Sequence[ImageView], look: Look) -> Table:
    made = table("NAME", "SIZE", "PUSHED", "USED", "DIGEST", look=look, right=("SIZE",), flexible="NAME")
    for one in images:
        used = ago(look.now - one.used_at)
        made.add_row(
            plain(one.name, "bold"), size_text(one.bytes), ago(look.now - one.pushed_at), used, plain(one.digest[:12])
        )
    return made
