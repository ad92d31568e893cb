"""The file of a backup: written in one pass, read only after all of it was checked."""

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

import msgspec
from msgspec import Struct

from weft.backup.encryption import MAGIC, ChangedError, DecryptingReader, EncryptingWriter, WrongKeyError
from weft.credentials import Credentials

FORMAT = 1
PIECE_BYTES = 1 << 18
MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 4 << 20
CREDENTIAL_BYTES_MAX = 1 << 16
KEY_LENGTH_MIN = 16


class BackupError(Exception):
    """One sentence for a person; nothing was changed."""


class Table(Struct, frozen=True, kw_only=True):
    """`sha256` of its text."""

    name: str
    columns: tuple[str, ...]
    rows: int
    bytes: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """`migrations` and `credentials`: SHA-256 by name; `sequences`: the last value of each that was used."""

    format: int = FORMAT
    version: str
    made_at: float
    migrations: dict[str, str] = {}
    tables: tuple[Table, ...] = ()
    sequences: dict[str, int] = {}
    credentials: dict[str, str] = {}

    def rows(self, *tables: str) -> int:
        """The number of rows in these tables, or in all."""
        return sum(table.rows for table in self.tables if not tables or table.name in tables)


class _Format(Struct):
    """The part of the manifest that every version reads."""

    format: int
    version: str = "unknown"


class Writer:
    """An archive that is being written."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    @contextmanager
    def table(self, name: str) -> Iterator[IO[bytes]]:
        with self._archive.open(f"tables/{name}", "w", force_zip64=True) as entry:
            yield entry

    def credentials(self, credentials: Credentials) -> dict[str, str]:
        """Write the credentials that a cluster needs to be the same one; returns the SHA-256 of each."""
        written = {}
        for name, content in credentials.portable().items():
            self._archive.writestr(f"credentials/{name}", content)
            written[name] = hashlib.sha256(content).hexdigest()
        return written

    def end(self, manifest: Manifest) -> None:
        self._archive.writestr(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))


class Backup:
    """An archive that is read; all of it agrees with its manifest."""

    def __init__(self, archive: zipfile.ZipFile, manifest: Manifest) -> None:
        self._archive = archive
        self.manifest = manifest

    def table(self, name: str) -> Iterator[bytes]:
        with self._archive.open(f"tables/{name}") as entry:
            while piece := entry.read(PIECE_BYTES):
                yield piece

    def credentials(self) -> dict[str, bytes]:
        return {name: self._archive.read(f"credentials/{name}") for name in self.manifest.credentials}


@contextmanager
def written(path: Path, *, key: bytes | None) -> Iterator[Writer]:
    """An archive that has its name only once it is whole and on the disk. Raises BackupError."""
    if os.path.lexists(path):
        raise BackupError(f"{path} exists already")
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with open(unfinished, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            encrypting = None if key is None else EncryptingWriter(file, key)
            out = file if encrypting is None else cast(BinaryIO, encrypting)
            with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                yield Writer(archive)
            if encrypting is not None:
                encrypting.finish()
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except OSError as error:
        raise BackupError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def opened(path: Path, *, key: bytes | None) -> Iterator[Backup]:
    """The backup in this file, after every byte of it was checked. Raises BackupError."""
    try:
        with open(path, "rb") as file, zipfile.ZipFile(_decrypted(path, file, key)) as archive:
            manifest = _manifest(path, archive)
            _check(path, archive, manifest)
            yield Backup(archive, manifest)
    except (zipfile.BadZipFile, ChangedError, EOFError, zlib.error):
        raise BackupError(f"{path} is no backup of weft, or was cut off or changed") from None
    except WrongKeyError:
        raise BackupError(f"{path} was encrypted with another key") from None
    except OSError as error:
        raise BackupError(f"cannot read {path}: {error.strerror or error}") from error


def read_key(path: Path) -> bytes:
    """The secret in a key file. Raises BackupError."""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise BackupError(f"cannot read {path}: {error.strerror}") from error
    if not KEY_LENGTH_MIN <= len(secret) <= PIECE_BYTES:
        raise BackupError(f"the key in {path} must have {KEY_LENGTH_MIN} characters or more, got {len(secret)}")
    return secret


def _decrypted(path: Path, file: BinaryIO, key: bytes | None) -> BinaryIO:
    encrypted = file.read(len(MAGIC)) == MAGIC
    file.seek(0)
    if encrypted and key is None:
        raise BackupError(f"{path} is encrypted: name its key with --key-file")
    if key is not None and not encrypted:
        raise BackupError(f"{path} is not encrypted: leave --key-file out")
    return file if key is None else cast(BinaryIO, io.BufferedReader(DecryptingReader(file, key), PIECE_BYTES))


def _manifest(path: Path, archive: zipfile.ZipFile) -> Manifest:
    try:
        found = archive.getinfo(MANIFEST)
        if found.file_size > MANIFEST_BYTES_MAX:
            raise zipfile.BadZipFile
        text = archive.read(found)
        about = msgspec.json.decode(text, type=_Format)
        if about.format > FORMAT:
            raise BackupError(f"{path} was made by a later version of weft, {about.version}: restore it with that one")
        return msgspec.json.decode(text, type=Manifest)
    except (KeyError, msgspec.DecodeError):
        raise zipfile.BadZipFile from None


def _check(path: Path, archive: zipfile.ZipFile, manifest: Manifest) -> None:
    expected = {f"tables/{table.name}": (table.sha256, table.bytes) for table in manifest.tables}
    for name, digest in manifest.credentials.items():
        if not Credentials.is_portable(name):
            raise BackupError(f"{path} has a credential that weft does not make: {name!r:.80}")
        expected[f"credentials/{name}"] = (digest, CREDENTIAL_BYTES_MAX)
    for name, (digest, bytes_max) in expected.items():
        found, size = hashlib.sha256(), 0
        try:
            entry = archive.open(name)
        except KeyError:
            raise zipfile.BadZipFile from None
        with entry:
            while piece := entry.read(PIECE_BYTES):
                found.update(piece)
                size += len(piece)
                if size > bytes_max:
                    raise zipfile.BadZipFile
        if found.hexdigest() != digest:
            raise zipfile.BadZipFile
