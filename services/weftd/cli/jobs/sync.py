"""`--sync DIR`: the files of a folder go along with a job. docs/sync.md."""

import argparse
import os
from typing import TYPE_CHECKING

from weft.client import Client, Refused
from weft.domain.quantity import size_text
from weft.domain.text import plural
from weftd.cli import page
from weftd.cli.cli_error import CliError

if TYPE_CHECKING:
    from weft.packing import PackedFiles


def sync_option(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    what = "the files of this folder go along and are where it runs; .gitignore and .weftignore there name what stays"
    parser.add_argument("--sync", metavar="DIR", help=what)


def pack(folder: str) -> "PackedFiles":
    """Raises `CliError`."""
    from weft import packing  # slow to import

    try:
        packed = packing.pack(folder)
    except Refused as error:
        raise CliError(error.reason, field="--sync", status=1 if os.path.isdir(folder) else 2) from error
    for name in packed.left_out:
        page.remark(f"note: {name} is neither a file nor a folder and is not sent")
    return packed


async def store(client: Client, packed: "PackedFiles") -> None:
    """Store what was packed, unless the gateway has it. Raises `CliError`."""
    from weft import packing

    try:
        sent = await packing.store(client, packed)
    except Refused as error:
        raise CliError(error.reason, field="--sync") from error
    page.note(sent_sentence(packed, client.url, sent=sent))


def sent_sentence(packed: "PackedFiles", url: str, *, sent: bool) -> str:
    """Sentence about the size of the sent files and their destination."""
    what = f"{plural(packed.files, 'file')}, {size_text(packed.bytes)} packed"
    return f"{what}, sent to {url}" if sent else f"{what}: {url} has this already, nothing was sent"
