"""Calls of functions as jobs: what is sent with one, and what comes back.

The source of a function goes along, its arguments and its result go as JSON, by the types in its annotations.
"""

import base64
import functools
import hashlib
import io
import json
import math
import os
import pickle
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, get_type_hints

import msgspec
from msgspec import Struct

from weft.client import call_program
from weft.client.client import Client
from weft.client.errors import Refused
from weft.client.failure import failure
from weft.client.job_failed import JobFailed
from weft.client.job_fields import JobFields, specification
from weft.client.job_name import token
from weft.domain.job import JobState
from weft.messages.http import JobView

PROGRAM = "weft_call.py"
CALLS_FILE = "weft-calls.data"
ARGUMENT_BYTES_MAX = 64 << 10  # calls in the command; larger ones go along as a file
SOURCE_FILES_MAX, SOURCE_BYTES_MAX = 200, 2 << 20  # a larger package is found by PYTHONPATH or not at all
JOBS_MAX = 64  # elements of one `map`, unless its caller gives `chunk`
VERSION_SECONDS_MAX = 10.0
Call = tuple[Sequence[Any], Mapping[str, Any]]


class CallError(Struct, frozen=True, kw_only=True):
    """An exception of the function. `traceback`: as Python prints it; empty: the call could not be made."""

    type: str
    message: str
    traceback: str


class Answer(Struct, frozen=True, kw_only=True):
    """The line that one call left: its encoded `value`, or its `error`."""

    n: int
    value: str | None = None
    error: CallError | None = None


class RemoteFunction:
    """A function that a job can find by its module and its name. `pickled`: arguments and results are pickled."""

    def __init__(self, function: Callable[..., Any], fields: JobFields, *, pickled: bool, python: str) -> None:
        self.function, self.fields, self.pickled, self.python = function, fields, pickled, python
        self.name = token(function.__name__) or "function"

    def prepared(
        self,
        calls: Sequence[Call],
        *,
        chunk: int = 0,
        at_once: int | None = None,
        table: Mapping[str, Any] = MappingProxyType({}),
    ) -> "Prepared":
        """The job for these calls, or with `chunk` the array, each element of which makes `chunk` of them.

        `table`: the fields of a sweep; each element makes one call, with the values of its row as named arguments.

        Raises Refused for what no job could do, before anything is sent.
        """
        self._check()
        module, files = _source(self.function)
        told: dict[str, Any] = {
            "module": module,
            "name": self.function.__qualname__,
            "python": list(sys.version_info[:2]),
            "pickled": self.pickled,
            "chunk": chunk,
            "sweep": list(table.get("sweep", {})),
            "calls": "",
            "file": "",
        }
        data = self._encoded(calls)
        if len(data) <= ARGUMENT_BYTES_MAX and not chunk:
            told["calls"] = base64.b64encode(data).decode()
        else:
            told["file"] = CALLS_FILE
            files = {**files, CALLS_FILE: data}
        packed = _packed({**files, PROGRAM: Path(call_program.__file__).read_bytes()})
        fields = cast(JobFields, {"name": self.name, **self.fields, "env": self._env()})
        program = self.python if not self.is_contained or self.python != sys.executable else "python3"
        asked = specification({"command": [program, PROGRAM, json.dumps(told)]}, fields, cwd="")
        digest = hashlib.sha256(packed).hexdigest()
        asked = {**asked, "context": digest}
        asked |= table
        if chunk:
            elements = f"0-{math.ceil(len(calls) / chunk) - 1}"
            asked["array"] = elements if at_once is None else f"{elements}%{at_once}"
        asked.pop("workdir", None)
        return Prepared(asked=asked, packed=packed, digest=digest)

    @property
    def is_contained(self) -> bool:
        return bool(self.fields.get("image"))

    def value_of(self, answer: Answer) -> Any:
        """The result that was sent. Raises Refused if it is not of the annotated type."""
        assert answer.value is not None
        if self.pickled:
            return pickle.loads(base64.b64decode(answer.value))
        value = json.loads(answer.value)
        kind = _hints(self.function).get("return", Any)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise _refused("return", f"the result is not the annotated {kind!r}: {error}", value) from error

    def here(self, call: Call) -> Any:
        """Call the function in this process, with arguments and result as a job would have them."""
        positional, named = call
        if not self.pickled:
            positional, named = json.loads(self._encoded([call]))[0]
            positional, named = call_program.by_type(self.function, list(positional), dict(named))
        value = self.function(*positional, **named)
        encoded = (
            base64.b64encode(pickle.dumps(value)).decode() if self.pickled else json.dumps(call_program.plain(value))
        )
        return self.value_of(Answer(n=0, value=encoded))

    def _env(self) -> dict[str, str]:
        """A process of this machine finds the modules that are found here."""
        given = dict(self.fields.get("env", {}))
        if self.is_contained:
            return given
        return {"PYTHONPATH": python_path(), **given}

    def _encoded(self, calls: Sequence[Call]) -> bytes:
        try:
            if self.pickled:
                return pickle.dumps([(tuple(positional), dict(named)) for positional, named in calls])
            return json.dumps([msgspec.to_builtins([list(each[0]), dict(each[1])]) for each in calls]).encode()
        except (TypeError, ValueError, AttributeError, RecursionError, pickle.PickleError) as error:
            how = "" if self.pickled else "; pass plain values, or @weft.function(pickle=True)"
            raise _refused("arguments", f"cannot be sent: {error}{how}", None) from error

    def _check(self) -> None:
        if not self.is_contained and self.python != sys.executable:
            has, wanted = _version_of(self.python), f"{sys.version_info[0]}.{sys.version_info[1]}"
            if has != wanted:
                raise _refused("python", f"{self.python} is Python {has}, and this is {wanted}", self.python)


class Prepared(Struct, frozen=True, kw_only=True):
    asked: dict[str, Any]
    packed: bytes
    digest: str


_stored: set[tuple[str, str]] = set()  # address and digest of files that this process has stored lately


async def store(client: Client, prepared: Prepared) -> None:
    """Store the files that go along, unless this process did so before."""
    key = (client.url, prepared.digest)
    if key in _stored:
        return
    if await client.context(prepared.digest) is None:
        await client.set_context(prepared.digest, prepared.packed)
    if len(_stored) > 1000:
        _stored.clear()
    _stored.add(key)


async def answers(client: Client, job: str) -> dict[int, Answer]:
    """The answers that a job left, by the number of the call; none if it left no file."""
    try:
        found = await client.read_file(job, f"results/{call_program.FILE}")
    except Refused as error:
        if error.status != 404:
            raise
        return {}
    lines = found.split(b"\n")[:-1]  # the last is empty, or was not written whole
    read = [msgspec.json.decode(line, type=Answer) for line in lines]
    return {answer.n: answer for answer in read}


async def outcome(
    client: Client, view: JobView, function: RemoteFunction, found: Mapping[int, Answer], n: int
) -> object:
    """The result of the call with this number. Raises JobFailed."""
    answer = found.get(n) or found.get(-1)
    if answer is not None and answer.value is not None:
        return function.value_of(answer)
    if answer is not None and answer.error is not None:
        raise JobFailed(
            view.id,
            view.name,
            state=JobState.FAILED,
            cause=view.ended_for,
            rank=0,
            status=view.exit_code,
            error=f"{answer.error.type}: {answer.error.message}".removeprefix(": "),
            traceback=answer.error.traceback,
        )
    if view.state is JobState.SUCCEEDED:
        raise JobFailed(view.id, view.name, state=JobState.FAILED, error="it left no result: its files were deleted")
    raise await failure(client, view)


def python_path() -> str:
    """The folders in which this process finds modules, without those of the installation of Python."""
    folders = [os.path.abspath(folder) for folder in sys.path if os.path.isdir(folder or ".")]
    return os.pathsep.join(folder for folder in folders if not _is_pythons(folder))


def is_local() -> bool:
    """Return True if WEFT_LOCAL asks for calls in this process."""
    return os.environ.get("WEFT_LOCAL", "0") not in ("", "0")


def _source(function: Callable[..., Any]) -> tuple[str, dict[str, bytes]]:
    """The module in which a job finds the function, and the files of it that go along."""
    if "<" in function.__qualname__:
        raise _refused(
            "function", "a job cannot find it: define it at the top level of a module", function.__qualname__
        )
    module = sys.modules[function.__module__]
    file = getattr(module, "__file__", None)
    name = function.__module__
    if name == "__main__":
        name = module.__spec__.name if module.__spec__ is not None else Path(file or "").stem
    if file is None:
        raise _refused("function", "a job cannot find it: it is in no file", function.__qualname__)
    path = Path(file).absolute()
    if _is_pythons(str(path)):
        return name, {}
    top, _, rest = name.partition(".")
    if not rest:
        return name, {f"{name}.py": path.read_bytes()}
    depth = name.count(".") + (path.name == "__init__.py")
    root = path.parents[depth - 1] if depth else path.parent
    sources = sorted(root.rglob("*.py")) if root.name == top else []
    if len(sources) > SOURCE_FILES_MAX or sum(each.stat().st_size for each in sources) > SOURCE_BYTES_MAX:
        return name, {}
    return name, {str(each.relative_to(root.parent)): each.read_bytes() for each in sources}


def _packed(files: Mapping[str, bytes]) -> bytes:
    """A ZIP file that is the same for the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", allowZip64=False) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o100644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[name])
    return packed.getvalue()


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):  # an annotation names what is not there
        return {}


@functools.cache
def _version_of(python: str) -> str:
    """The minor version of another interpreter. Raises Refused."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        ran = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=VERSION_SECONDS_MAX)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _refused("python", f"cannot be run here: {error}", python) from error
    return ran.stdout.strip() or "none"


def _is_pythons(path: str) -> bool:
    """Return True for what belongs to the installation of Python, which the job has, too."""
    return any(path.startswith(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


def _refused(field: str, reason: str, value: object) -> Refused:
    return Refused(0, field, reason, value=value)
