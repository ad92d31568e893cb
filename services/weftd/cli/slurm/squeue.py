"""`squeue`: the jobs that wait and run; with `-t all` also those that are over."""

import os
import re
import sys
from collections.abc import Callable, Sequence

from weft.messages.http import JobView
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.slurm.arguments import Arguments, flat, states_of
from weftd.cli.slurm.fields import FIELDS
from weftd.cli.slurm.numbers import reference_of
from weftd.cli.slurm.reading import GOING, Wanted, cluster, gathered, listed, named, open_only, user_name

ENDED_MAX = 1000  # the newest jobs; Slurm forgets those that are over after minutes
_DEFAULT = "%.22i %.9P %.20j %.8u %.2t %.10M %.6D %R"
_LETTERS = {
    "A": ("JOBID", "JobID"),
    "D": ("NODES", "NNodes"),
    "F": ("ARRAY_JOB_ID", "ArrayJobID"),
    "K": ("ARRAY_TASK_ID", "ArrayTaskID"),
    "M": ("TIME", "Time"),
    "N": ("NODELIST", "Nodes"),
    "P": ("PARTITION", "Partition"),
    "Q": ("PRIORITY", "Priority"),
    "R": ("NODELIST(REASON)", "NodesOrReason"),
    "S": ("START_TIME", "Start"),
    "T": ("STATE", "State"),
    "V": ("SUBMIT_TIME", "Submit"),
    "a": ("ACCOUNT", "Account"),
    "b": ("TRES_PER_NODE", "Gres"),
    "e": ("END_TIME", "End"),
    "i": ("JOBID", "JobID"),
    "j": ("NAME", "JobName"),
    "p": ("PRIORITY", "Priority"),
    "r": ("REASON", "Reason"),
    "t": ("ST", "StateCompact"),
    "u": ("USER", "User"),
}
_FIELD = re.compile(r"%(\.?)([0-9]*)([A-Za-z])")


async def squeue(words: Sequence[str]) -> int:
    parser = Arguments("squeue")
    parser.several("-j", "--jobs", "--job")
    parser.several("-n", "--name")
    parser.several("-p", "--partition")
    parser.several("-t", "--states", "--state")
    parser.several("-u", "--user", "--users")
    parser.add_argument("--me", action="store_true")
    parser.add_argument("-h", "--noheader", action="store_true")
    parser.add_argument("-o", "--format", default=_DEFAULT)
    parser.add_argument("-r", "--array", action="store_true")  # one row for each element
    parser.add_argument("-a", "--all", action="store_true")
    parser.of_the_cluster()
    args = parser.parse_args(words)
    draw = _drawer(args.format)
    asked = flat(args.states)
    states = states_of(asked)
    is_open = not asked
    wanted = Wanted(
        names=tuple(flat(args.name)),
        users=(*flat(args.user), *([user_name()] if args.me else [])),
        pools=tuple(flat(args.partition)),
        states=GOING if is_open else states,
    )
    references = [reference_of(each, os.environ) for each in flat(args.jobs)]
    async with cluster() as client:
        if references:
            jobs, missing = await named(client, references)
            if missing and len(references) == 1:
                raise CliError(f"Invalid job id specified: {missing[0].text}")
            jobs = [job for job in (open_only(jobs) if is_open else jobs) if wanted.has(job)]
        elif wanted == Wanted(states=GOING) and args.format == _DEFAULT and not args.array:
            jobs = await gathered(client)
        else:
            jobs = await listed(client, wanted, ended_max=None if wanted.names else ENDED_MAX)
    lines = [] if args.noheader else [draw(None)]
    sys.stdout.write("".join(f"{line}\n" for line in (*lines, *map(draw, jobs))))
    return 0


def _drawer(pattern: str) -> Callable[[JobView | None], str]:
    """The function that makes the line of a job, or of the heads (None). Raises CliError."""
    for found in _FIELD.finditer(pattern):
        if found[3] not in _LETTERS:
            raise CliError(f"--format: %{found[3]} is unknown; Weft has {', '.join(f'%{name}' for name in _LETTERS)}")

    def draw(job: JobView | None) -> str:
        def field(found: re.Match[str]) -> str:
            head, name = _LETTERS[found[3]]
            text = head if job is None else clean(FIELDS[name](job))
            width = int(found[2] or 0)
            if width and not (found[3] in "iAF" and job is not None):  # a number that is cut names another job
                text = text[:width]
            return text.rjust(width) if found[1] else text.ljust(width)

        return _FIELD.sub(field, pattern).rstrip(" ")

    return draw
