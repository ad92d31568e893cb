"""Folders and links, mostly the kernel's: read, or known to be missing."""

import os


def names_in(folder: str) -> list[str]:
    """What lies in a folder; nothing if it is not there."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def link_of(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
