"""The version of this code: in a checkout by Git, else the installed one.

A tagged commit has the version of its tag, `0.1.0`. Five commits later it is `0.1.1.dev5+g1a2b3c4`, with changes that
are not committed `0.1.1.dev5+g1a2b3c4.dirty`. `pyproject.toml` reads the version of a wheel here, too.
"""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

HEADER = "X-Weft-Version"  # a gateway sends its version with every answer
FIRST = "0.1.0"  # is developed until it is tagged
GIT_SECONDS_MAX = 10
_MINOR = re.compile(r"(\d{1,6})\.(\d{1,6})[0-9A-Za-z.+-]{0,64}")
_TAGGED = re.compile(r"v(?P<release>\d+(?:\.\d+)*)-(?P<since>\d+)-g(?P<commit>[0-9a-f]+)(?P<dirty>-dirty)?")


@cache
def version() -> str:
    root = Path(__file__).parents[2]
    if not (root / "pyproject.toml").is_file():
        from importlib.metadata import version as installed  # slow to import

        return installed("weft-gpu")
    # The build of an image has no history: its version comes from the environment.
    return os.environ.get("WEFT_VERSION") or of_checkout(root) or f"{FIRST}.dev0"


def which_to_upgrade(gateway: str) -> str:
    """A sentence if the gateway has another minor version than this client; empty if not, or if its version is none.

    The older one lacks what the newer one knows, so that is the one to upgrade.
    """
    theirs = _MINOR.fullmatch(gateway)
    ours = _MINOR.fullmatch(version()) if theirs is not None else None
    if theirs is None or ours is None or theirs.groups() == ours.groups():
        return ""
    older = "client" if _numbers(ours) < _numbers(theirs) else "gateway"
    also = "" if older == "client" else f", or use a client of version {theirs[1]}.{theirs[2]}"
    return f"this client has version {version()} and the gateway {gateway}: upgrade the {older}{also}"


def _numbers(found: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(number) for number in found.groups())


def of_checkout(root: Path) -> str:
    """The version of the commit that is checked out in `root`; empty if Git does not know."""
    found = _TAGGED.fullmatch(_git(root, "describe", "--tags", "--long", "--dirty", "--match", "v[0-9]*"))
    if found is None:
        commits, commit = _git(root, "rev-list", "--count", "HEAD"), _git(root, "rev-parse", "--short", "HEAD")
        return f"{FIRST}.dev{commits}+g{commit}" if commits and commit else ""
    if found["since"] == "0" and not found["dirty"]:
        return found["release"]
    *before, last = found["release"].split(".")
    following = ".".join((*before, str(int(last) + 1)))
    return f"{following}.dev{found['since']}+g{found['commit']}{'.dirty' if found['dirty'] else ''}"


def _git(root: Path, *arguments: str) -> str:
    """The output of Git; empty if there is no Git, or it refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=GIT_SECONDS_MAX,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
