"""Images in the registry: their names, sizes and digests."""

from collections.abc import Sequence

from rich.table import Table

from weft.domain.quantity import size_text
from weft.messages.images import ImageView
from weftd.cli.drawing.look import Look, plain, table

DIGEST_CHARACTERS = len("sha256:") + 12


def image_table(images: Sequence[ImageView], look: Look) -> Table:
    """A row for each tag; an image that has none any more is shown by its whole digest, by which it can be deleted."""
    made = table("NAME", "SIZE", "DIGEST", look=look, right=("SIZE",), flexible="NAME")
    for one in images:
        names = [f"{one.name}:{tag}" for tag in one.tags] or [f"{one.name}@{one.digest}"]
        for name in names:
            made.add_row(plain(name, "bold"), size_text(one.bytes), plain(one.digest[:DIGEST_CHARACTERS]))
    return made
