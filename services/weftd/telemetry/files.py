"""Reads folders and links, mostly the kernel's, which may be missing."""

import os


def names_in(folder: str) -> list[str]:
    """The names in a folder; none if the folder is missing."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def link_of(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
