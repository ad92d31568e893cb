"""`weft secret`: values that jobs name and nobody is shown again. docs/secrets.md.

The value of `set` comes from the terminal (it is not echoed), from a pipe, or from a file; never from the command line,
which the shell keeps and other users of the machine see. One newline at its end is left out.
"""

import argparse
import getpass
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from weft.messages.secrets import VALUE_BYTES_MAX
from weftd.cli import connection, page
from weftd.cli.complaint import Complaint
from weftd.cli.drawing.secrets import secret_table
from weftd.cli.words import clean

TYPED_BYTES_MAX = 4094  # of a longer line, the kernel drops without a word what is beyond


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("secret", help="store values that jobs name", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="set|list|delete")
    setter = verbs.add_parser("set", help="store a secret, or replace its value")
    setter.add_argument("--from", dest="source", metavar="FILE", help="the value is what this file has")
    lister = verbs.add_parser("list", help="the names of the secrets; their values are not shown")
    deleter = verbs.add_parser("delete", help="delete a secret")
    for each in (setter, deleter):
        each.add_argument("name", metavar="NAME")
    for each, func in ((setter, set_), (lister, list_), (deleter, delete)):
        connection.options(each)
        each.set_defaults(func=func)


async def set_(args: argparse.Namespace) -> int:
    with _ended_by_ctrl_c():  # nothing else waits for this loop yet
        value = _value(args.name, args.source)
    async with connection.connected(args) as client:
        kept = await client.set_secret(args.name, value)
    page.answered(args, kept, f"{kept.name} is stored")
    return 0


async def list_(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        found = await client.secrets()
    if args.json:
        page.json_line(found)
    elif found.secrets:
        page.show(secret_table(found.secrets, page.look()))
    else:
        page.note("no secrets; `weft secret set NAME` stores one")
    return 0


async def delete(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        gone = await client.delete_secret(args.name)
    page.answered(args, gone, f"{gone.deleted} is deleted")
    return 0


def _value(name: str, source: str | None) -> str:
    """Raises `Complaint`."""
    asks = source is None and sys.stdin.isatty()
    text = _typed(name) if asks else _read(source)
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise Complaint("is empty", field="value")
    if len(text.encode()) > VALUE_BYTES_MAX:
        raise Complaint(f"is more than {VALUE_BYTES_MAX} bytes", field="value")
    return text


def _typed(name: str) -> str:
    """What is typed, without an echo. Raises `Complaint`."""
    try:
        text = getpass.getpass(f"value of {clean(name)}: ")
        size = len(text.encode())
    except (UnicodeError, EOFError) as error:
        page.remark("")  # the end of the prompt's line
        why = "is empty" if isinstance(error, EOFError) else "is no text in UTF-8"
        raise Complaint(why, field="value") from None
    if size > TYPED_BYTES_MAX:
        raise Complaint(f"is more than the {TYPED_BYTES_MAX} bytes that a terminal takes: use --from", field="value")
    return text


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends a read at once, and the terminal echoes again: else it cancels a task that waits for that read."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _read(source: str | None) -> str:
    """Little more than a secret may have, however much there is. Raises `Complaint`."""
    try:
        if source is None:
            data = sys.stdin.buffer.read(VALUE_BYTES_MAX + 3)
        else:
            with open(source, "rb") as file:
                data = file.read(VALUE_BYTES_MAX + 3)
        return data.decode()
    except OSError as error:
        raise Complaint(f"{source}: {error.strerror}", field="--from") from error
    except UnicodeDecodeError as error:
        raise Complaint("is no text in UTF-8", field="value") from error
