"""The name of a job that its user did not name."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

_SCRIPTS = (".py", ".sh", ".bash", ".ipynb", ".jl", ".r", ".lua", ".js")


def job_name(command: Sequence[str], image: str | None) -> str:
    """The name of a job without one: from its script, its module, its program, or its image."""
    return token(_named_by(command, image)) or "job"


def _named_by(command: Sequence[str], image: str | None) -> str:
    if not command:
        return PurePosixPath(image or "").name.split(":")[0].split("@")[0]
    for before, word in zip(["", *command], command, strict=False):
        if before == "-m":
            return word
        if word.endswith(_SCRIPTS) and " " not in word:
            return PurePosixPath(word).stem
    return PurePosixPath(command[0]).name


def token(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-")
