"""`python -m tests.gpu.kit FILE`: packs what `python -m tests.gpu` needs into one archive, for a machine without a
package index: this checkout, and the wheels of the packages that it imports, by their locked hashes, for each Python
that Weft supports."""

import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from weft.version import version

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
PACKAGES = (  # `tests.gpu` and the arbiter that it starts import them
    "aiohappyeyeballs",
    "aiohttp",
    "aiosignal",
    "attrs",
    "frozenlist",
    "idna",
    "msgspec",
    "multidict",
    "nvidia-ml-py",
    "prometheus-client",
    "propcache",
    "typing-extensions",
    "yarl",
)
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")
BYTES_MAX = 40 << 20
RUN = """#!/bin/sh
# sh run.sh [--minutes 8]: needs Python 3.11 to 3.13 with venv, x86-64 and an NVIDIA driver; some parts need PyTorch
set -e
cd "$(dirname "$0")"
python3 -m venv --system-site-packages env
env/bin/pip install --quiet --no-index --no-deps --find-links wheels PACKAGES
exec env PYTHONPATH=.:libs:services env/bin/python -m tests.gpu "$@"
"""


def main(arguments: Sequence[str]) -> int:
    (target,) = arguments
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-kit-") as made:
        folder = Path(made)
        (folder / "lock").write_text("".join(locked(LOCK.read_text(), PACKAGES)))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        pip += ["--only-binary", ":all:", "--require-hashes", "-r", str(folder / "lock"), "-d", str(folder / "wheels")]
        for platform in PLATFORMS:
            pip += ["--platform", platform]
        for python in PYTHONS:
            subprocess.run([*pip, "--python-version", python], check=True)
        (folder / "run.sh").write_text(RUN.replace("PACKAGES", " ".join(PACKAGES)))
        (folder / "VERSION").write_text(version())
        files = subprocess.run(
            ["git", "ls-files", "-z", "libs", "services", "tests"], cwd=ROOT, capture_output=True, check=True
        ).stdout
        with tarfile.open(path, "w:gz") as archive:
            archive.add(folder / "run.sh", "gpu-kit/run.sh")
            archive.add(folder / "wheels", "gpu-kit/wheels")
            archive.add(folder / "VERSION", "gpu-kit/tests/gpu/VERSION")
            for name in files.decode().split("\0"):
                if name.endswith((".py", ".ptx", ".c", ".h")):
                    archive.add(ROOT / name, f"gpu-kit/{name}")
    size = path.stat().st_size
    if size > BYTES_MAX:
        path.unlink()
        sys.stderr.write(f"the kit has {size >> 20} MiB, more than {BYTES_MAX >> 20}\n")
        return 1
    sys.stdout.write(f"{path}: {size / 2**20:.1f} MiB\n")
    return 0


def locked(text: str, packages: Sequence[str]) -> list[str]:
    """The lines of a lock that are about these packages. Raises ValueError if one is not there."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines(keepends=True):
        if line and not line[0].isspace():
            name = line.partition("==")[0].strip()
        if name in packages:
            found.setdefault(name, []).append(line)
    if missing := [each for each in packages if each not in found]:
        raise ValueError(f"the lock has no {', '.join(missing)}")
    return [line for each in packages for line in found[each]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
