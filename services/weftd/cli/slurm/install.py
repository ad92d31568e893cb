"""`weft slurm`: the commands of Slurm, for people and programs that know them.

`weft slurm install DIR` writes sbatch, srun, squeue, sacct, scancel, sinfo and scontrol into a folder. Put that folder
into PATH to use them; without that, no Slurm of this machine is touched. docs/slurm.md says what they do.
"""

import argparse
import os
import shlex
import sys
from pathlib import Path

from weftd.cli import page
from weftd.cli.cli_error import CliError
from weftd.cli.slurm.__main__ import NAMES

_MARK = "# One of Weft's commands with the names of Slurm's: docs/slurm.md"


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "slurm",
        help="install sbatch, squeue and the like, which use this cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="install")
    installer = verbs.add_parser("install", help="write the commands into a folder")
    installer.add_argument("folder", metavar="DIR", help="folder to write into; it is made if it is not there")
    installer.set_defaults(func=install)


async def install(args: argparse.Namespace) -> int:
    print(f"PATH={shlex.quote(_installed(Path(args.folder)))}:$PATH")
    page.note("put that into the profile of your shell, or into the environment of your workflow")
    return 0


def _installed(folder: Path) -> str:
    """Write a program for each command, and return the folder. A file that is no such program stays as it is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            path = folder / name
            if path.exists() and _MARK not in path.read_text(errors="replace"):
                raise CliError(f"{path} is another program, and is not replaced: choose a folder of its own")
        for name in NAMES:
            _write(folder / name, name)
    except OSError as error:
        raise CliError(f"{folder}: {error.strerror}") from error
    return str(folder.resolve())


def _write(path: Path, name: str) -> None:
    """A program that starts this interpreter. -P: modules of the folder in which it is called are not imported."""
    started = f"{shlex.quote(sys.executable)} -P -m weftd.cli.slurm {name}"
    path.write_text(f'#!/bin/sh\n{_MARK}\nexec {started} "$@"\n')
    os.chmod(path, 0o755)
