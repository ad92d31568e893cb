"""`python -m weftd.cli.slurm NAME …` is the command NAME of Slurm; the programs of `weft slurm install` call it."""

import asyncio
import importlib
import os
import sys
from collections.abc import Sequence

from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean_lines

NAMES = ("sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
INTERRUPTED = 130


def main(name: str, arguments: Sequence[str]) -> int:
    """The exit status of a command. A mistake is one line, as Slurm prints it."""
    try:
        module = importlib.import_module(f"weftd.cli.slurm.{'sbatch' if name == 'srun' else name}")
        status: int = asyncio.run(getattr(module, name)(list(arguments)))
        sys.stdout.flush()
    except CliError as error:
        print(f"{name}: error: {clean_lines(str(error))}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
