"""Read the value of `weft secret set`."""

import getpass
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from weft.messages.secrets import VALUE_BYTES_MAX
from weftd.cli import page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean

TYPED_BYTES_MAX = 4094  # the kernel drops the rest of a longer line


def secret_value(name: str, source: str | None) -> str:
    """The value from a file, or from stdin: a terminal does not echo it. Raises `CliError`."""
    with _ended_by_ctrl_c():  # nothing else waits for this loop yet
        text = _typed(name) if source is None and sys.stdin.isatty() else _read(source)
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise CliError("is empty", field="value")
    if len(text.encode()) > VALUE_BYTES_MAX:
        raise CliError(f"is more than {VALUE_BYTES_MAX} bytes", field="value")
    return text


def _typed(name: str) -> str:
    """Read typed input without an echo. Raises `CliError`."""
    try:
        text = getpass.getpass(f"value of {clean(name)}: ")
        size = len(text.encode())
    except (UnicodeError, EOFError) as error:
        page.remark("")  # the end of the prompt's line
        why = "is empty" if isinstance(error, EOFError) else "is no text in UTF-8"
        raise CliError(why, field="value") from None
    if size > TYPED_BYTES_MAX:
        raise CliError(f"is more than the {TYPED_BYTES_MAX} bytes that a terminal takes: use --from", field="value")
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
    """Little more than a secret may have, however much there is. Raises `CliError`."""
    try:
        if source is None:
            data = sys.stdin.buffer.read(VALUE_BYTES_MAX + 3)
        else:
            with open(source, "rb") as file:
                data = file.read(VALUE_BYTES_MAX + 3)
        return data.decode()
    except OSError as error:
        raise CliError(f"{source}: {error.strerror}", field="--from") from error
    except UnicodeDecodeError as error:
        raise CliError("is no text in UTF-8", field="value") from error
