"""Programs that tests run as jobs: each needs nothing of the tests, and is run by its path."""

import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent


def program(name: str, *arguments: str) -> tuple[str, ...]:
    """The command of a program, run by this Python."""
    return (sys.executable, str(PROGRAMS / f"{name}.py"), *arguments)
