"""The result of a part of a day on real hardware, and its errors."""

from typing import Any

Found = dict[str, Any]


class WrongError(Exception):
    """A part found what must not be. The message says what."""


class SkippedError(Exception):
    """A part cannot run here. The message says why."""
