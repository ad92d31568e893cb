"""Access to object stores through rclone: the form of their secret, lists of objects, and copies.

The keys are only in the environment of rclone: in no argument, log, file or message. Errors of rclone are sorted into
those that stay (no such bucket, no right to read it) and those that may pass.
"""

import asyncio
import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from weft.domain.cause import CauseCode
from weft.domain.object_store.urls import bucket_and_prefix
from weftd.executor.data.settings import DataSettings
from weftd.executor.runs import RuntimeUnavailableError

LIST_BYTES_MAX = 64 << 20
OBJECTS_MAX = 100_000
LIST_SECONDS_MAX = 300.0
LINE_BYTES_MAX = 1 << 20
ERROR_CHARS_MAX = 300
LOOK_SECONDS = 1.0
NAMES = {
    "AWS_ENDPOINT_URL": "ENDPOINT",
    "AWS_REGION": "REGION",
    "AWS_ACCESS_KEY_ID": "ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY": "SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN": "SESSION_TOKEN",
}
"""The lines of the secret of an object store, and what rclone calls them."""
_INHERITED = (
    "PATH",
    "HOME",
    "TMPDIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
_TLS = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.\[\]:-]{1,255}(/[A-Za-z0-9._/-]{0,255})?")
_RETRIES = ("--retries=1", "--low-level-retries=2")  # a start is tried again, with what is copied already
_NOT_THERE = 3  # the exit status of rclone for a bucket that is not there
_FOR_GOOD = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket", "StatusCode: 403")


class NoDataError(Exception):
    """The data of a run cannot be had, for a reason that its user should read."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{CauseCode.OBJECT_STORE}: {why}")


class Store(Struct, frozen=True):
    """An object store with its keys. `variables`: by what rclone calls them, without what its `repr` would show."""

    endpoint: str
    variables: dict[str, str]

    def __repr__(self) -> str:
        return f"Store({self.endpoint!r})"

    def without_keys(self, text: str) -> str:
        """The text without any value of the secret but its address and region."""
        for name, value in self.variables.items():
            if name.endswith(("_KEY_ID", "_ACCESS_KEY", "_TOKEN")) and value:
                text = text.replace(value, "***")
        return text


class StoredObject(Struct, frozen=True, rename="pascal"):
    """An object below a place, as rclone lists it."""

    path: str
    size: int
    mod_time: str


def store_of(secret: str, name: str) -> Store:
    """The store that the value of the secret `name` describes. Raises NoDataError, which shows no part of a value."""
    found: dict[str, str] = {}
    for word in secret.split():
        key, given, value = word.partition("=")
        if not given or key not in NAMES:
            known = ", ".join(NAMES)
            raise NoDataError(f"the secret {name} has a line that is no NAME=VALUE with a name of {known}")
        if key in found:
            raise NoDataError(f"the secret {name} has {key} twice")
        found[key] = value
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        if not found.get(key):
            raise NoDataError(f"the secret {name} has no {key}")
    endpoint = found.get("AWS_ENDPOINT_URL", "")
    if endpoint and not _ENDPOINT.fullmatch(endpoint):
        raise NoDataError(f"the secret {name} has an AWS_ENDPOINT_URL that is not http(s)://HOST[:PORT]")
    variables = {f"RCLONE_CONFIG_WEFT_{NAMES[key]}": value for key, value in found.items()}
    variables |= {
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_CONFIG_WEFT_TYPE": "s3",
        "RCLONE_CONFIG_WEFT_PROVIDER": "Other" if endpoint else "AWS",
        "RCLONE_CONFIG_WEFT_NO_CHECK_BUCKET": "true",
    }
    return Store(endpoint, variables)


class Rclone:
    def __init__(self, settings: DataSettings, environ: Mapping[str, str] = os.environ) -> None:
        self._settings = settings
        self._base = {name: environ[name] for name in (*_INHERITED, *_TLS) if name in environ}

    @property
    def program(self) -> str:
        """The path of rclone; empty: this node has none."""
        beside = Path(sys.executable).parent / "rclone"
        return self._settings.data_rclone or (str(beside) if beside.exists() else shutil.which("rclone") or "")

    async def objects(self, store: Store, url: str) -> tuple[StoredObject, ...]:
        """All objects below a place, in the order of their names. Raises NoDataError, RuntimeUnavailableError."""
        kept: list[bytes] = []
        size = 0

        def take(data: bytes) -> str:
            nonlocal size
            size += len(data)
            kept.append(data)
            return f"{url} has more than {OBJECTS_MAX} objects" if size > LIST_BYTES_MAX else ""

        asked = (
            "lsjson",
            "--recursive",
            "--files-only",
            "--no-mimetype",
            "--use-server-modtime",
            *_RETRIES,
            _remote(url),
        )
        await self._run(asked, store, url, out=take, seconds_max=LIST_SECONDS_MAX)
        try:
            found = msgspec.json.decode(b"".join(kept), type=tuple[StoredObject, ...])
        except msgspec.DecodeError as error:
            raise RuntimeUnavailableError(f"{url}: the list of its objects cannot be read: {error}") from error
        if not found:
            raise NoDataError(f"{url} has no objects")
        if len(found) > OBJECTS_MAX:
            raise NoDataError(f"{url} has more than {OBJECTS_MAX} objects")
        for one in found:
            if one.size < 0 or any(part in ("", ".", "..") for part in one.path.split("/")):
                raise NoDataError(f"{url} has an object whose name cannot be a file name: {one.path[:200]!r}")
        return tuple(sorted(found, key=lambda one: one.path))

    async def copy(self, store: Store, url: str, folder: str, *, lock: int, moved: Callable[[int], str]) -> None:
        """Copy all objects below a place into a folder. `lock`: an open file that rclone holds open, too. `moved`:
        called with the bytes so far; what it returns, if anything, is why the copy is to end.

        Raises NoDataError, RuntimeUnavailableError.
        """
        asked = ("copy", _remote(url), folder, "--use-server-modtime", *self._copying)
        await self._run(asked, store, url, lock=lock, moved=moved)

    async def upload(self, store: Store, folder: str, url: str) -> None:
        """Copy the files of a folder, without links and devices, to a place that may have some of them already. Raises
        NoDataError, RuntimeUnavailableError."""
        # With a slash rclone does not ask first whether the place is an object, which a store may forbid.
        await self._run(("copy", folder, f"{_remote(url).rstrip('/')}/", *self._copying), store, url)

    @property
    def _copying(self) -> tuple[str, ...]:
        return (
            *(f"--{name}={self._settings.data_transfers}" for name in ("transfers", "checkers")),
            *_RETRIES,
            "--timeout=30s",
            "--contimeout=15s",
            "--use-json-log",
            "--stats=1s",
            "--stats-log-level=NOTICE",
        )

    async def _run(
        self,
        asked: Sequence[str],
        store: Store,
        url: str,
        *,
        out: Callable[[bytes], str] = lambda _: "",
        moved: Callable[[int], str] = lambda _: "",
        lock: int | None = None,
        seconds_max: float | None = None,
    ) -> None:
        """`seconds_max`: the time for everything; None: rclone goes on while bytes come."""
        program = self.program
        if not program:
            raise NoDataError('this node has no rclone: install "weft-gpu[data]" there')
        process = await asyncio.create_subprocess_exec(
            program,
            *asked,
            env={**self._base, **store.variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            pass_fds=() if lock is None else (lock,),
        )
        watch = _Watch(moved, self._settings.data_silent_seconds if seconds_max is None else seconds_max)
        try:
            async with asyncio.timeout(seconds_max), asyncio.TaskGroup() as tasks:
                assert process.stdout is not None
                assert process.stderr is not None
                tasks.create_task(watch.pump(process.stdout, out, process))
                tasks.create_task(watch.read(process.stderr))
                looking = tasks.create_task(watch.look(process))
                status = await process.wait()
                looking.cancel()
        except TimeoutError:
            raise RuntimeUnavailableError(f"{url}: the object store did not answer within {seconds_max:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if watch.refused:
            raise NoDataError(watch.refused)
        if watch.why:
            raise RuntimeUnavailableError(f"{url}: {watch.why}")
        if status:
            said = store.without_keys(watch.last.replace("\n", " "))[:ERROR_CHARS_MAX]
            said = said or f"rclone ended with status {status}"
            if status == _NOT_THERE or any(word in watch.last for word in _FOR_GOOD):
                raise NoDataError(f"{url}: {said}")
            raise RuntimeUnavailableError(f"{url}: {said}")


class _Watch:
    """Reads what rclone logs: the bytes so far and the last error. `why`: why it was ended. `refused`: why what it
    returns is not taken."""

    def __init__(self, moved: Callable[[int], str], silent_seconds: float) -> None:
        self._moved, self._silent_seconds = moved, silent_seconds
        self._bytes = -1
        self._since = time.monotonic()
        self.last = ""
        self.why = ""
        self.refused = ""

    async def pump(
        self, stream: asyncio.StreamReader, take: Callable[[bytes], str], process: asyncio.subprocess.Process
    ) -> None:
        while not self.refused and (data := await stream.read(1 << 16)):
            self.refused = take(data)
        if self.refused:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def read(self, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line that is longer than any that is read
                continue
            if not line:
                return
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            said = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError:
            if any(word in line for word in (b"ERROR", b"CRITICAL", b"Failed", b"NOTICE")):
                self.last = line.decode(errors="replace").strip().partition(" : ")[2] or line.decode(errors="replace")
            return
        if said.stats is not None:
            if said.stats.bytes > self._bytes:
                self._bytes, self._since = said.stats.bytes, time.monotonic()
        elif said.level in ("error", "critical"):
            self.last = said.msg

    async def look(self, process: asyncio.subprocess.Process) -> None:
        """End rclone when it moves nothing, or nobody wants the copy any more."""
        while not self.why:
            await asyncio.sleep(LOOK_SECONDS)
            if time.monotonic() - self._since > self._silent_seconds:
                self.why = f"no byte came for {self._silent_seconds:g} s"
            self.why = self.why or self._moved(max(0, self._bytes))
        with contextlib.suppress(ProcessLookupError):
            process.kill()


class _Stats(Struct):
    bytes: int = 0


class _Line(Struct):
    level: str = ""
    msg: str = ""
    stats: _Stats | None = None


def _remote(url: str) -> str:
    bucket, prefix = bucket_and_prefix(url)
    return f"weft:{bucket}/{prefix}"
