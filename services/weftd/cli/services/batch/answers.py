"""The file of answers: one line for each answer or error, in the order in which they came.

A later run of the same batch keeps the answers and asks all other lines again. The end of a line that a killed run had
not finished is cut, and errors are taken out, in a new file that takes the place of the old one.
"""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec
from msgspec import Raw, Struct

from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.services.batch.lines import LINES_MAX, Line

ANSWER_BYTES_MAX = 32 << 20  # a whole answer
RECORD_BYTES_MAX = ANSWER_BYTES_MAX + (1 << 20)
_ID = re.compile(r"weft-(?P<number>[1-9][0-9]{0,8})-(?P<digest>[0-9a-f]{16})")
_BEGIN = b'{"id":"weft-'


class Response(Struct, frozen=True):
    status_code: int
    request_id: str
    body: Raw | str


class Error(Struct, frozen=True):
    code: str
    message: str


class Record(Struct, frozen=True, kw_only=True):
    """A line of the file, in the form of OpenAI's batches. `line`: the number of the request, from 1."""

    id: str
    custom_id: str
    line: int
    response: Response | None
    error: Error | None


class _Status(Struct, frozen=True):
    status_code: int


class _Kept(Struct, frozen=True):
    """The part of a line that a later run reads: `error` alone, or with the response of an engine that refused."""

    id: str
    response: _Status | None
    error: Error | None


class AnswerFile:
    """The file, locked while it is open. `answered`: the digest of each line that has an answer, by its number."""

    def __init__(self, path: str) -> None:
        self.answered: dict[int, str] = {}
        self._places: set[int] = set()  # the lines that are answers
        self._whole = True  # it has nothing else
        self._path = Path(os.path.realpath(path))
        self._shown = clean(path)
        self._open_files = ExitStack()
        self._file: IO[bytes] | None = None
        self._decoder = msgspec.json.Decoder(_Kept)

    def __enter__(self) -> Self:
        """Open it, or make it. Raises `CliError`: it is no such file, or in use."""
        try:
            self._open()
        except OSError as error:
            self._open_files.close()
            raise CliError(f"cannot write {self._shown}: {error.strerror or error}") from error
        except CliError:
            self._open_files.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open_files.close()

    def begin(self) -> None:
        """Take out what is no answer. Raises `CliError`."""
        if self._whole:
            return
        try:
            self._write_again()
        except OSError as error:
            raise CliError(f"cannot write {self._shown}: {error.strerror or error}") from error

    def write(self, line: Line, *, response: Response | None, error: Error | None) -> None:
        """Raises `CliError`: the file takes no more."""
        assert self._file is not None, "it is open"
        name = f"weft-{line.number}-{line.digest}"
        record = Record(id=name, custom_id=line.custom_id, line=line.number, response=response, error=error)
        left = memoryview(msgspec.json.encode(record) + b"\n")
        try:
            while left:
                left = left[os.write(self._file.fileno(), left) :]
        except OSError as problem:
            raise CliError(f"cannot write {self._shown}: {problem.strerror or problem}") from problem

    def _open(self) -> None:
        self._file = file = self._opened(self._path, "a+b")
        self._lock(file)
        if not os.path.samestat(os.fstat(file.fileno()), os.stat(self._path)):  # it was replaced meanwhile
            raise CliError(f"another `weft batch` writes {self._shown}")
        self._read(file)

    def _opened(self, path: Path, mode: str) -> IO[bytes]:
        file: IO[bytes] = open(path, mode, buffering=0)  # noqa: SIM115 - `__exit__` closes it
        return self._open_files.enter_context(file)

    def _lock(self, file: IO[bytes]) -> None:
        try:
            import fcntl
        except ImportError:  # Windows has none
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CliError(f"another `weft batch` writes {self._shown}") from None

    def _read(self, file: IO[bytes]) -> None:
        for place, text in enumerate(_lines(file)):
            if not text.endswith(b"\n"):
                if not (text.startswith(_BEGIN) or _BEGIN.startswith(text)):
                    raise CliError(self._foreign(place))
                self._whole = False
                break
            try:
                kept = self._decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise CliError(self._foreign(place)) from None
            found = _ID.fullmatch(kept.id)
            if found is None:
                raise CliError(self._foreign(place))
            number = int(found["number"])
            if kept.error is None and kept.response is not None and number not in self.answered:
                if len(self.answered) >= LINES_MAX:
                    raise CliError(self._foreign(place))
                self.answered[number] = found["digest"]
                self._places.add(place)
            else:
                self._whole = False

    def _foreign(self, place: int) -> str:
        return f"{self._shown} has other content, in its line {place + 1}: name a new file for the answers"

    def _write_again(self) -> None:
        """The answers alone, in a file that takes this one's place at once and whole."""
        file = self._file
        assert file is not None, "it is open"
        part = self._path.with_name(f".{self._path.name}.weft-part")
        part.unlink(missing_ok=True)
        new = self._opened(part, "xb")
        try:
            self._lock(new)
            os.fchmod(new.fileno(), os.fstat(file.fileno()).st_mode & 0o777)
            with open(os.dup(new.fileno()), "wb") as copy:
                copy.writelines(text for place, text in enumerate(_lines(file)) if place in self._places)
            os.fsync(new.fileno())
            os.replace(part, self._path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        self._file = new


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    with open(os.dup(file.fileno()), "rb") as lines:
        lines.seek(0)
        while text := lines.readline(RECORD_BYTES_MAX):
            yield text
