"""The options of the commands that read and cancel. An unknown one is one line that names it."""

import argparse
from collections.abc import Iterable
from typing import NoReturn

from weft.domain.job import FINAL, JobState
from weftd.cli.cli_error import CliError
from weftd.cli.slurm.fields import LONG, SHORT

_UNKNOWN = "unrecognized arguments: "
ALL = tuple(JobState)
OPEN = tuple(state for state in JobState if state not in FINAL)


class Arguments(argparse.ArgumentParser):
    """A parser without `--help` and abbreviations, as `-h` is an option of Slurm."""

    def __init__(self, name: str) -> None:
        super().__init__(prog=name, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        if message.startswith(_UNKNOWN):
            raise CliError(f"unrecognized option {message.removeprefix(_UNKNOWN).split()[0][:60]!r}")
        raise CliError(message.removeprefix("argument "))

    def several(self, *names: str) -> None:
        """An option whose value is a list with commas, and that may be repeated."""
        self.add_argument(
            *names, action="append", default=[], type=lambda text: [part for part in text.split(",") if part]
        )

    def of_the_cluster(self) -> None:
        """Options about other clusters and accounts, which change nothing: there is one cluster, and it is asked."""
        self.add_argument("-M", "--clusters", choices=["all", "weft"])
        self.add_argument("-Q", "--quiet", action="store_true")


def flat(lists: Iterable[list[str]]) -> list[str]:
    return [part for parts in lists for part in parts]


def states_of(words: Iterable[str]) -> frozenset[str]:
    """The states as Slurm writes them in full; empty: all. Raises CliError."""
    found: set[str] = set()
    for word in words:
        name = word.upper()
        if name == "ALL":
            return frozenset()
        name = SHORT.get(name, name)
        if name not in LONG:
            raise CliError(f"Invalid job state specified: {word[:60]}; Weft has {', '.join(LONG)}")
        found.add(name)
    return frozenset(found)
