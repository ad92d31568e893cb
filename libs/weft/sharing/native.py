"""Builds and finds compiled files, such as the hook that is preloaded into jobs.

Sources are compiled once, into a folder named by the digest of sources, flags and compiler, which appears whole or not
at all: any number of processes may build at the same time. `WEFT_NATIVE` names a folder with ready files, such as an
image's; then nothing is compiled. `python -m weft.sharing.native [FOLDER…]` compiles the hook, and puts it into each
folder.
"""

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

READY_VARIABLE = "WEFT_NATIVE"
SOURCES = Path(__file__).parent / "native"
_WARNINGS = ("-Wall", "-Wextra", "-Werror")
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", *_WARNINGS)
_COMPILE_SECONDS_MAX = 300
_SAID_BYTES_MAX = 2000


@dataclass(frozen=True)
class Library:
    """A shared library. `path`: its place in a folder of compiled files. `headers`: the folders of its headers."""

    path: str
    sources: tuple[Path, ...]
    headers: tuple[Path, ...]
    flags: tuple[str, ...]


@dataclass(frozen=True)
class NotBuilt:
    """Nothing is compiled here, and why."""

    reason: str


@dataclass(frozen=True)
class Compiler:
    """A command that takes the arguments of `cc`."""

    command: tuple[str, ...]
    name: str


def build(library: Library, folder: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path | NotBuilt:
    """The compiled library, made at the first call. `folder`: where it is kept; `cache_folder` by default."""
    if ready := environ.get(READY_VARIABLE):
        path = Path(ready, library.path)
        return path if path.is_file() else NotBuilt(f"{READY_VARIABLE}={ready} has no {library.path}")
    compiler = find_compiler()
    if isinstance(compiler, NotBuilt):
        return compiler
    try:
        return _build(library, compiler, folder or cache_folder(environ))
    except OSError as error:
        return NotBuilt(f"GPU sharing cannot be compiled: {error}")


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where compiled files are kept: `build/` of a checkout, the user's cache otherwise."""
    root = Path(__file__).parents[3]
    if (root / "pyproject.toml").is_file() and os.access(root, os.W_OK):
        return root / "build" / "native"
    cache = environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "weft" / "native"


def find_compiler() -> Compiler | NotBuilt:
    """The one in the `ziglang` wheel, for the C library of any image since glibc 2.17; else the machine's `cc`."""
    for compiler in find_compilers(target="gnu.2.17"):
        return compiler
    return NotBuilt("GPU sharing needs a C compiler: there is neither `cc` nor the wheel `ziglang` here")


def find_compilers(*, target: str) -> list[Compiler]:
    """The compilers of this machine, the preferred one first. `target`: the C library for which `ziglang` compiles."""
    found = []
    machine = platform.machine()
    if importlib.util.find_spec("ziglang") is not None and machine in ("x86_64", "aarch64"):
        command = (sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-{target}")
        found.append(Compiler(command, _version((sys.executable, "-m", "ziglang", "version"))))
    if cc := shutil.which("cc"):
        found.append(Compiler((cc,), _version((cc, "--version"))))
    return found


def compile_file(compiler: Compiler, output: Path, sources: Sequence[Path], flags: Sequence[str]) -> NotBuilt | None:
    """Compile `sources` into `output`; None when it is done."""
    command = [*compiler.command, *_FLAGS, *flags, "-o", str(output), *map(str, sources), "-lpthread", "-ldl", "-lm"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_COMPILE_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return NotBuilt(f"compiling {output.name} took more than {_COMPILE_SECONDS_MAX} s")
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[:_SAID_BYTES_MAX]
        return NotBuilt(f"compiling {output.name} failed: {said}")
    return None


def _build(library: Library, compiler: Compiler, folder: Path) -> Path | NotBuilt:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / _digest(library, compiler)
    built = wanted / library.path
    if built.is_file():
        return built
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished:
        made = Path(unfinished, "made")
        (made / library.path).parent.mkdir(parents=True)
        failed = compile_file(compiler, made / library.path, library.sources, library.flags)
        if failed is not None:
            return failed
        try:
            made.rename(wanted)
        except OSError:  # another process was faster
            if not built.is_file():
                raise
    return built


def _digest(library: Library, compiler: Compiler) -> str:
    digest = hashlib.sha256()
    parts = (*compiler.command, compiler.name, platform.machine(), *_FLAGS, *library.flags)
    digest.update("\0".join(parts).encode())
    headers = (path for folder in library.headers for path in folder.glob("*.h"))
    for path in sorted((*library.sources, *headers)):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=8)
def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").partition("\n")[0]


HOOK_NAME = "libweft-share.so"
HOOK = Library(
    path=HOOK_NAME,
    sources=tuple(sorted(SOURCES.glob("*.c"))),
    headers=(SOURCES,),
    flags=("-shared", "-Wl,-z,now", f"-Wl,-soname,{HOOK_NAME}"),
)


def main(library: Library, folders: Sequence[str]) -> None:
    """Compile the library unless it is compiled, copy it into each folder, and print its path."""
    built = build(library)
    if isinstance(built, NotBuilt):
        sys.exit(built.reason)
    for folder in folders:
        placed = Path(folder, library.path)
        placed.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(built, placed)
    sys.stdout.write(f"{built}\n")


if __name__ == "__main__":
    main(HOOK, sys.argv[1:])
