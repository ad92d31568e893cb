"""Builds and finds the compiled files: the hook that is preloaded into jobs, and the emulated driver.

The sources lie in `native/`. They are compiled once, into a folder named by the digest of sources, flags and compiler,
which appears whole or not at all: any number of processes may build at the same time. `WEFT_NATIVE` names a folder with
ready files, such as an image's; then nothing is compiled.
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
HOOK = "libweft-share.so"
EMULATED = "emulated"  # the folder of the emulated driver, for LD_LIBRARY_PATH
DRIVER = "libcuda.so.1"

SOURCES = Path(__file__).parent / "native"
_HOOK_SOURCES = (
    "hook.c",
    "resolve.c",
    "share.c",
    "gate.c",
    "estimates.c",
    "markers.c",
    "memory.c",
    "pools.c",
    "sizes.c",
)
_DRIVER_SOURCES = (
    "emulated.c",
    "emulated_calls.c",
    "emulated_copies.c",
    "emulated_device.c",
    "emulated_file.c",
    "emulated_memory.c",
)
_WARNINGS = ("-Wall", "-Wextra", "-Werror")
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", *_WARNINGS)
_COMPILE_SECONDS_MAX = 300
_SAID_BYTES_MAX = 2000


@dataclass(frozen=True)
class Built:
    """The compiled files."""

    hook: Path  # for LD_PRELOAD
    driver_folder: Path  # has the emulated libcuda.so.1


@dataclass(frozen=True)
class NotBuilt:
    """Nothing is compiled here, and why."""

    reason: str


@dataclass(frozen=True)
class Compiler:
    """A command that takes the arguments of `cc`."""

    command: tuple[str, ...]
    name: str


def build(folder: Path | None = None, environ: Mapping[str, str] = os.environ) -> Built | NotBuilt:
    """The compiled files, made at the first call. `folder`: where they are kept; `cache_folder` by default."""
    if ready := environ.get(READY_VARIABLE):
        built = _in(Path(ready))
        return built if _whole(built) else NotBuilt(f"{READY_VARIABLE}={ready} has not {HOOK} and {EMULATED}/{DRIVER}")
    compiler = find_compiler()
    if isinstance(compiler, NotBuilt):
        return compiler
    try:
        return _build(compiler, folder or cache_folder(environ))
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


def _build(compiler: Compiler, folder: Path) -> Built | NotBuilt:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / _digest(compiler)
    if _whole(built := _in(wanted)):
        return built
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished:
        made = Path(unfinished, "made")
        (made / EMULATED).mkdir(parents=True)
        shared = ("-shared", "-Wl,-z,now")
        hook = [SOURCES / name for name in _HOOK_SOURCES]
        driver = [SOURCES / name for name in _DRIVER_SOURCES]
        failed = compile_file(compiler, made / HOOK, hook, (*shared, f"-Wl,-soname,{HOOK}")) or compile_file(
            compiler, made / EMULATED / DRIVER, driver, (*shared, f"-Wl,-soname,{DRIVER}", "-Wl,-Bsymbolic")
        )
        if failed is not None:
            return failed
        try:
            made.rename(wanted)
        except OSError:  # another process was faster
            if not _whole(built):
                raise
    return built


def _in(folder: Path) -> Built:
    return Built(hook=folder / HOOK, driver_folder=folder / EMULATED)


def _whole(built: Built) -> bool:
    return built.hook.is_file() and (built.driver_folder / DRIVER).is_file()


def _digest(compiler: Compiler) -> str:
    digest = hashlib.sha256()
    parts = (*compiler.command, compiler.name, platform.machine(), *_FLAGS)
    digest.update("\0".join(parts).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=8)
def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").partition("\n")[0]


def main() -> None:
    """Compile what is not compiled yet, and say where it is; with a folder, put the compiled files there."""
    built = build()
    if isinstance(built, NotBuilt):
        sys.exit(built.reason)
    for folder in map(Path, sys.argv[1:]):
        placed = _in(folder)
        placed.driver_folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(built.hook, placed.hook)
        shutil.copy(built.driver_folder / DRIVER, placed.driver_folder / DRIVER)
    sys.stdout.write(f"{built.hook}\n{built.driver_folder / DRIVER}\n")


if __name__ == "__main__":
    main()
