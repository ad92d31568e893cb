"""`python -m weftd.cli.slurm NAME …` is the command NAME of Slurm; the programs of `weft slurm install` call it."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence

from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean_lines

NAMES = ("sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
INTERRUPTED = 130


def main(name: str, arguments: Sequence[str]) -> int:
    """The exit status of a command. A mistake is one line, as Slurm prints it."""
    try:
        status = asyncio.run(_command(name)(list(arguments)))
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


def _command(name: str) -> Callable[[Sequence[str]], Coroutine[None, None, int]]:
    """The function of a command; only its module is imported, to be quick."""
    match name:
        case "sacct":
            from weftd.cli.slurm.sacct import sacct as command
        case "sbatch":
            from weftd.cli.slurm.sbatch import sbatch as command
        case "scancel":
            from weftd.cli.slurm.scancel import scancel as command
        case "scontrol":
            from weftd.cli.slurm.scontrol import scontrol as command
        case "sinfo":
            from weftd.cli.slurm.sinfo import sinfo as command
        case "squeue":
            from weftd.cli.slurm.squeue import squeue as command
        case "srun":
            from weftd.cli.slurm.sbatch import srun as command
        case _:
            raise CliError(f"there is no such command; there is {', '.join(NAMES)}")
    return command


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
