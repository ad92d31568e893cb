"""`weft cp`: files to and from a job. Those of a job that has ended come from the node that kept them.

A folder comes as a tar archive, which is unpacked here name by name: nothing in it leads out of the target, whatever
the job made of it. The job's side needs `sh`, and `tar` for folders.
"""

import argparse
import asyncio
import os
import posixpath
import secrets
import stat
from contextlib import aclosing
from pathlib import Path

from msgspec import Struct

from weft.client import Client
from weft.client.files import local_path, path_of_files
from weft.client.sessions import RunSession
from weft.domain.quantity import size_bytes, size_text
from weft.messages.sessions import SessionKind
from weftd.cli import page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.parsing import shown
from weftd.cli.sessions.packing import Packed, Unpacking
from weftd.cli.sessions.shell import opened, run_options

SIZE_MAX = "100GiB"
ERRORS_BYTES_MAX = 4096
READ_BYTES = 64 << 10
PATH_BYTES_MAX = 4096  # as Linux has it

# What the job's side does. $1 is the path; with a beginning that no program takes for an option, it is $at.
_AT = """
case $1 in /*) at=$1;; *) at=./$1;; esac
"""
_GIVE = f"""{_AT}
if [ -d "$at" ]; then echo folder; cd "$at" && exec tar -cf - .
elif [ -f "$at" ]; then echo file; exec cat "$at"
elif [ -e "$at" ]; then echo "it is no file and no folder" >&2; exit 66
else echo "no such file or folder" >&2; exit 66; fi
"""
# $2 the name in a folder that is there, $3 the mode, $4 what makes the name of the part unique.
_TAKE_FILE = f"""{_AT}
case $1 in */) [ -d "$at" ] || {{ echo "no such folder" >&2; exit 66; }};; esac
if [ -d "$at" ]; then at=${{at%/}}/$2; fi
if [ -e "$at" ] && ! [ -f "$at" ]; then echo "the target is no file" >&2; exit 66; fi
part=${{at%/*}}/.weft-$4
trap 'rm -f "$part"' EXIT
cat >"$part" && chmod "$3" "$part" && mv -f "$part" "$at"
"""
_TAKE_FOLDER = f"""{_AT}
if [ -d "$at" ]; then at=${{at%/}}/$2; fi
if [ -e "$at" ] && ! [ -d "$at" ]; then echo "the target is no folder" >&2; exit 66; fi
mkdir -p "$at" && exec tar -xf - -C "$at"
"""


class PathBeside(Struct, frozen=True):
    """A local path, or with `job` a path on that job's node."""

    path: str
    job: str = ""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "cp",
        help="copy files to and from a job",
        description="Copy a file or a folder to or from a running job. A relative path of the job"
        " begins in its working folder. Use the paths that `weft files` shows for a job that has ended."
        " A target that is a folder receives the source under its own name.",
        epilog="weft cp train:checkpoints/last.pt .\nweft cp data/ train:/tmp/data\nweft cp ended:results/model.pt .",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=place, metavar="SOURCE", help="local path, or JOB:PATH")
    parser.add_argument("target", type=place, metavar="TARGET", help="JOB:PATH, or local path")
    parser.add_argument(
        "--size-max",
        default=SIZE_MAX,
        metavar="SIZE",
        help=f"maximum size of the copied files together (default: {SIZE_MAX})",
    )
    run_options(parser)
    parser.set_defaults(func=copy)


async def copy(args: argparse.Namespace) -> int:
    source, target = args.source, args.target
    if bool(source.job) == bool(target.job):
        raise CliError("one of the two is JOB:PATH, and the other a path here", status=2)
    try:
        size_max = size_bytes(args.size_max)
    except ValueError as error:
        raise CliError(f"expected a size such as 20GiB: {error}", field="--size-max", status=2) from None
    args.job = source.job or target.job
    for beside in (source, target):
        if len(os.fsencode(beside.path)) > PATH_BYTES_MAX:
            raise CliError(f"{_named(beside.path)} has more than {PATH_BYTES_MAX} bytes", status=2)
    async with opened(args) as (client, job):
        if source.job and (view := await client.job(job)).state.final:
            copied = await _fetch_kept(client, view.id, args, source.path, target.path, size_max)
        elif source.job:
            copied = await _fetch(client, job, args, source.path, target.path, size_max)
        else:
            copied = await _send(client, job, args, Path(source.path), target.path, size_max)
    page.note(f"{size_text(copied)} copied")
    return 0


def place(text: str) -> PathBeside:
    """`JOB:PATH`, or a path; one that has a colon begins with / or ./."""
    if not text:  # a variable of the shell without a value: it is not the folder here
        raise argparse.ArgumentTypeError("is empty")
    job, colon, path = text.partition(":")
    if not colon or "/" in job or not job:
        return PathBeside(text)
    if not path:
        raise argparse.ArgumentTypeError(f"expected JOB:PATH, not {clean(text[:60])!r}: the path is missing")
    return PathBeside(path, job)


def _target(path: str, named: str) -> tuple[Path, bool]:
    """Where it goes: into a folder that is there, or to a name in one. It takes the place of a file, and of no device,
    pipe or socket. True where the name ends with a slash, and only a folder can take it."""
    target, folder = Path(named), named.endswith("/")
    try:
        if target.is_dir():
            folder = False
            name = posixpath.basename(path.rstrip("/"))
            if name in ("", ".", ".."):
                raise CliError(f"{_named(path)} has no name of its own: name the target whole", status=2)
            target = target / name
        elif not target.parent.is_dir():
            raise CliError(f"there is no folder {_named(target.parent)}")
        if target.exists() and not target.is_file() and not target.is_dir():
            raise CliError(f"{_named(target)} is no file and no folder")
    except (OSError, ValueError) as error:
        raise CliError(f"{_named(target)}: {_words(error)}") from error
    return target, folder


def _taking(source: Path) -> tuple[str, str, str]:
    """The kind of transfer for the job's side, the name, and the mode of a file."""
    try:
        status = source.stat()
        name = source.name if source.name not in ("", "..") else source.resolve().name or "root"
    except (OSError, ValueError) as error:
        raise CliError(f"{_named(source)}: {_words(error)}") from error
    if stat.S_ISDIR(status.st_mode):
        return _TAKE_FOLDER, name, ""
    if stat.S_ISREG(status.st_mode):
        return _TAKE_FILE, name, f"{stat.S_IMODE(status.st_mode) & 0o777:o}"
    raise CliError(f"{_named(source)} is no file and no folder")


async def _fetch(client: Client, job: str, args: argparse.Namespace, path: str, named: str, size_max: int) -> int:
    target, folder = _target(path, named)
    async with _session(client, job, args, _GIVE, path) as session:
        await session.close_input()
        errors, into = bytearray(), Unpacking(target, size_max, folder=folder)
        try:
            async with aclosing(session.output()) as pieces:
                async for stream, data in pieces:
                    if stream == 2:
                        errors += data[: ERRORS_BYTES_MAX - len(errors)]
                    else:
                        await asyncio.to_thread(into.feed, data)
            await asyncio.to_thread(into.finish, whole=session.status == 0)
        except (OSError, ValueError) as error:
            raise CliError(f"{_named(target)}: {_words(error)}") from error
        finally:
            await asyncio.to_thread(into.close)
    _check(session, errors, path)
    for skipped in into.skipped[:5]:
        page.remark(f"weft: left out: {clean(skipped)}")
    if len(into.skipped) > 5:
        page.remark(f"weft: and {len(into.skipped) - 5} more")
    return into.size


async def _fetch_kept(client: Client, job: str, args: argparse.Namespace, path: str, named: str, size_max: int) -> int:
    """Copy files of a job that has ended from the node that kept them."""
    target, _ = _target(path, named)
    found = await client.files(job, path, rank=args.rank, role=args.role)
    if (size := sum(file.bytes for file in found)) > size_max:
        raise CliError(f"{_named(path)} has {size_text(size)}, which is more than {size_text(size_max)} (--size-max)")
    for file in found:
        try:
            where = local_path(file, path_of_files(path), target)
            where.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CliError(f"{_named(target)}: {_words(error)}") from error
        await client.fetch_file(job, file.path, where, rank=args.rank, role=args.role)
    return size


async def _send(client: Client, job: str, args: argparse.Namespace, source: Path, path: str, size_max: int) -> int:
    script, name, mode = _taking(source)
    async with _session(client, job, args, script, path, name, mode, secrets.token_hex(8)) as session:
        errors = bytearray()
        reading = asyncio.create_task(_errors_of(session, errors))
        try:
            size = await _feed(session, source, size_max, folder=not mode)
            await session.close_input()
            await reading
        except (OSError, ValueError) as error:
            raise CliError(f"{_named(source)}: {_words(error)}") from error
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    _check(session, errors, path)
    return size


async def _feed(session: RunSession, source: Path, size_max: int, *, folder: bool) -> int:
    """Send it; a thread packs, and waits while the session has no room."""
    loop, sent = asyncio.get_running_loop(), 0

    def write(data: bytes) -> None:
        nonlocal sent
        sent += len(data)
        if sent > size_max:
            raise ValueError(f"is larger than {size_text(size_max)} (--size-max)")
        asyncio.run_coroutine_threadsafe(session.write(data), loop).result()

    def pack() -> None:
        if folder:
            Packed(write).folder(source.resolve())
            return
        with open(source, "rb") as file:
            while piece := file.read(READ_BYTES):
                write(piece)

    await asyncio.to_thread(pack)
    return sent


async def _errors_of(session: RunSession, errors: bytearray) -> None:
    async with aclosing(session.output()) as pieces:
        async for stream, data in pieces:
            if stream == 2:
                errors += data[: ERRORS_BYTES_MAX - len(errors)]


def _session(client: Client, job: str, args: argparse.Namespace, script: str, *arguments: str) -> RunSession:
    command = ["/bin/sh", "-c", script, "weft-cp", *arguments]
    return client.enter(job, SessionKind.COPY, command=command, rank=args.rank, role=args.role)


def _check(session: RunSession, errors: bytearray, path: str) -> None:
    if session.status == 0:
        return
    words = clean(errors.decode(errors="replace").strip().partition("\n")[0])
    words = words if len(words) <= 300 else f"…{words[-300:]}"  # a long path comes before the reason
    why = words or clean(session.reason) or f"the job's side ended with status {session.status}"
    raise CliError(f"{_named(path)}: {why}")


def _named(path: object) -> str:
    """A path in a complaint: clean, and cut if it is long."""
    return shown(clean(str(path)))


def _words(error: Exception) -> str:
    """The system's reason without its number, and without the path, which the complaint has."""
    return clean((error.strerror if isinstance(error, OSError) else "") or str(error))
