"""The account that Postgres runs as, which is never root, and folders that this account can reach."""

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TypedDict

import msgspec

from weft.servers.errors import ServerFailedError, ServerMissingError

UNPRIVILEGED = ("postgres", "nobody")
MACHINE_FOLDER = Path("/var/lib/weft")
CHECK_SECONDS_MAX = 10


class AsUser(TypedDict, total=False):
    """Arguments with which `subprocess` runs a program as another account."""

    user: int
    group: int
    extra_groups: Sequence[int]


class Account(msgspec.Struct, frozen=True):
    name: str
    uid: int
    gid: int

    def as_user(self) -> AsUser:
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def may(self, test: str, path: Path) -> bool:
        """Whether the account may enter a folder (`-x`) or read a file (`-r`), by the kernel's answer."""
        return self._succeeds(["/bin/sh", "-c", f'test {test} "$1"', "sh", path])

    def can_run(self, program: Path) -> bool:
        """True if the account can read the program and its libraries."""
        try:
            return self._succeeds([program, "--version"])
        except PermissionError:
            return False

    def _succeeds(self, command: Sequence[str | Path]) -> bool:
        done = subprocess.run(
            command,
            check=False,
            cwd="/",
            timeout=CHECK_SECONDS_MAX,
            capture_output=True,
            start_new_session=True,
            **self.as_user(),
        )
        return done.returncode == 0


def server_account(existing: Path) -> Account | None:
    """None unless this process is root: the server then runs as the same account. Existing data keep their owner."""
    if os.geteuid() != 0:
        return None
    if existing.exists() and (owner := existing.stat()).st_uid != 0:
        return Account(f"uid {owner.st_uid}", owner.st_uid, owner.st_gid)
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise ServerMissingError(f"Postgres does not run as root, and none of {', '.join(UNPRIVILEGED)} is a user here")


def reachable_folder(home: Path, account: Account | None) -> Path:
    """A folder for the data of this home: inside it, or elsewhere if the account may not enter the home."""
    if account is None or account.may("-x", home):
        return home / "postgres"
    # A new name: data that a deleted home of the same path left behind are not this home's.
    name = f"{sha256(os.fsencode(home)).hexdigest()[:16]}-{secrets.token_hex(4)}"
    return _machine_folder(account) / name


def readable_copy(programs: Path, version: str, account: Account | None) -> Path:
    """The folder of programs, or a copy that the account may run; a wheel has its libraries beside the folder."""
    tree, package = programs.parent, programs.parent.parent
    if account is None or (account.can_run(programs / "initdb") and account.may("-r", tree / "share")):
        return programs
    copy = _machine_folder(account) / f"postgres-{version}"
    if not copy.exists():
        with tempfile.TemporaryDirectory(prefix=f"{copy.name}-", dir=copy.parent) as unfinished:
            made = Path(unfinished) / "made"
            shutil.copytree(tree, made / package.name / tree.name, symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, made / libraries.name, symlinks=True)
            _let_everyone_read(made)
            _move_unless_there(made, copy)
    return copy / package.name / tree.name / programs.name


def _machine_folder(account: Account) -> Path:
    """A folder of this machine that this process made and alone may write, and that the account may enter."""
    refused = []
    for folder in (MACHINE_FOLDER, Path(tempfile.gettempdir()) / f"weft-{os.geteuid()}"):
        try:
            make_folder(folder, 0o755)
        except OSError as error:
            refused.append(f"{folder}: {error.strerror}")
            continue
        found = folder.lstat()
        if found.st_uid == os.geteuid() and not found.st_mode & 0o022 and account.may("-x", folder):
            return folder
        refused.append(f"{folder}: not ours alone, or closed to {account.name}")
    raise ServerFailedError(f"no folder that {account.name} can reach for the data of Postgres ({'; '.join(refused)})")


def make_folder(folder: Path, mode: int, owner: Account | None = None) -> None:
    """Make a folder with this mode, whatever the umask; an existing one stays as it is."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    folder.chmod(mode)
    if owner:
        os.chown(folder, owner.uid, owner.gid)


def _let_everyone_read(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644))


def _move_unless_there(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():
            raise
