"""The first process of each container, `weft-init` (init.c): compiled, and placed where the engine can mount it.

It is compiled once, into a folder named by the digest of source, flags and compiler. `WEFT_NATIVE` names a folder with
a ready file, such as an image's; then nothing is compiled. `python -m weftd.executor.runtime.docker.init FOLDER`
puts it there. It is static, so it runs in images without a C library, a shell, or anything else.
"""

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from weft.sharing.native import READY_VARIABLE, Compiler, NotBuilt, cache_folder, compile_file, find_compilers

NAME = "weft-init"
HURRY_SIGNAL = 40  # HURRY in init.c
SOURCE = Path(__file__).with_suffix(".c")
_FLAGS = ("-static", "-s")
_PROBE = "/weft-init-probe"  # a program that is not there
_NOT_FOUND_STATUS = 127
_PROBE_SECONDS_MAX = 10


def build(folder: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path | NotBuilt:
    """The compiled program, made at the first call. `folder`: where it is kept; `cache_folder` by default."""
    if platform.system() != "Linux":
        return NotBuilt("containers have a first process of Weft's on Linux alone")
    if ready := environ.get(READY_VARIABLE):
        path = Path(ready, NAME)
        return path if path.is_file() else NotBuilt(f"{READY_VARIABLE}={ready} has no {NAME}")
    failed = NotBuilt(f"{NAME} needs a C compiler: there is neither `cc` nor the wheel `ziglang` here")
    for compiler in reversed(find_compilers(target="musl")):  # `cc` takes a second, the other builds a C library first
        try:
            built = _build(compiler, (folder or cache_folder(environ)) / f"init-{_digest(compiler)}")
        except OSError as error:
            return NotBuilt(f"{NAME} cannot be compiled: {error}")
        if isinstance(built, Path):
            return built
        failed = built
    return failed


def place(home: Path, environ: Mapping[str, str] = os.environ) -> Path | NotBuilt:
    """The program in the executor's home, which the engine can mount. Compiles: not for the loop."""
    built = build(environ=environ)
    if isinstance(built, NotBuilt):
        return built
    try:
        data = built.read_bytes()
        placed = home / "init" / f"{NAME}-{hashlib.sha256(data).hexdigest()[:16]}"
        placed.parent.mkdir(exist_ok=True)
        if not placed.is_file() or placed.read_bytes() != data:
            new = placed.with_suffix(".new")
            new.write_bytes(data)
            new.chmod(0o755)  # containers of any user run it
            new.rename(placed)
        return placed if (why := _fault(placed)) is None else why
    except OSError as error:
        return NotBuilt(f"{NAME} cannot be placed in the home: {error}")


def _fault(program: Path) -> NotBuilt | None:
    """None if the program runs on this host: a home may be on a file system without programs."""
    command = [str(program), str(int(signal.SIGTERM)), _PROBE]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return NotBuilt(f"{program} does not end")
    return None if done.returncode == _NOT_FOUND_STATUS else NotBuilt(f"{program} ended with {done.returncode}")


def _build(compiler: Compiler, wanted: Path) -> Path | NotBuilt:
    built = wanted / NAME
    if built.is_file():
        return built
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=wanted.parent) as unfinished:
        made = Path(unfinished, "made")
        made.mkdir()
        if (failed := compile_file(compiler, made / NAME, [SOURCE], _FLAGS)) is not None:
            return failed
        try:
            made.rename(wanted)
        except OSError:  # another process was faster
            if not built.is_file():
                raise
    return built


def _digest(compiler: Compiler) -> str:
    parts = (*compiler.command, compiler.name, platform.machine(), *_FLAGS)
    return hashlib.sha256("\0".join(parts).encode() + b"\0" + SOURCE.read_bytes()).hexdigest()[:16]


def main() -> None:
    """Compile the program if it is not compiled yet, print its path, and copy it into the folders that are named."""
    built = build()
    if isinstance(built, NotBuilt):
        sys.exit(built.reason)
    for folder in map(Path, sys.argv[1:]):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(built, folder / NAME)
    sys.stdout.write(f"{built}\n")


if __name__ == "__main__":
    main()
