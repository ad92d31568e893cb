"""Changes of one job that a person asks for: priority, scale, share."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from weft.client import Client, Refused
from weft.messages.http import Accepted, ArrayAsked
from weftd.cli import arrays, connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.jobs.selection import ID_BEGINS

EACH_SHOWN_MAX = 20  # of more, one line is printed in place of a line each
AT_ONCE_MAX = 8  # requests: as many as the gateway answers at once for one tenant
_DIGITS_MAX = 9
_SCALE = (
    "change a job's size, within the min and max of its roles. A waiting job starts with the new size. A running job"
    " changes live, or by a restart from its checkpoint, and grows as soon as GPUs are free"
)

_SHARE = (
    "change the share of a GPU that each rank of a running job has. It grows only as far as the GPU has free capacity;"
    " the event `tuned` has the result. A job that starts again gets the share of its job file"
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("priority", help="change a job's priority")
    parser.add_argument("job", metavar="JOB", help="id of the job, or its name if only one open job has it")
    parser.add_argument("priority", type=int, metavar="N", help="-1000 to 1000; higher goes first")
    connection.options(parser)
    parser.set_defaults(func=priority)
    parser = commands.add_parser("scale", help="change a job's size", description=_SCALE)
    parser.add_argument("job", metavar="JOB", help="id of the job, or its name if only one open job has it")
    parser.add_argument("size", nargs="+", metavar="ROLE=N", help="replicas of a role; N alone if the job has one role")
    connection.options(parser)
    parser.set_defaults(func=scale)
    parser = commands.add_parser("share", help="change a running job's share of a GPU", description=_SHARE)
    parser.add_argument("job", metavar="JOB", help="id of the job, or its name if only one open job has it")
    parser.add_argument("--request", type=float, metavar="PART", help="guaranteed part of a GPU's time, such as 0.5")
    parser.add_argument(
        "--limit", type=float, metavar="PART", help="maximum part that it may use while others are idle, up to 1"
    )
    parser.add_argument("--role", metavar="ROLE", default="", help="role to change, if several have shares")
    connection.options(parser)
    parser.set_defaults(func=share)


Ask = Callable[[Client, str], Awaitable[Accepted | ArrayAsked]]


async def priority(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        accepted = await client.prioritise(await the_job(client, args.job), args.priority)
    page.answered(args, accepted, f"{accepted.id} has priority {args.priority} (it is {accepted.state})")
    return 0


async def scale(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        job = await the_job(client, args.job)
        size = _size(args.size) if "=" in args.size[0] else await _size_of_one_role(client, job, args.size)
        accepted = await client.scale(job, size)
    wanted = ", ".join(f"{role} {count}" for role, count in size.items())
    page.answered(args, accepted, f"{accepted.id} should have {wanted} (it is {accepted.state})")
    return 0


async def share(args: argparse.Namespace) -> int:
    if args.request is None and args.limit is None:
        raise CliError("say --request, --limit or both", status=2)
    async with connection.connected(args) as client:
        job = await the_job(client, args.job)
        accepted = await client.share(job, request=args.request, limit=args.limit, role=args.role)
    given = {"a request of": args.request, "a limit of": args.limit}
    wanted = " and ".join(f"{what} {part:g}" for what, part in given.items() if part is not None)
    sentence = f"{accepted.id} should have {wanted} of a GPU, as far as there is room and its node can change it"
    page.answered(args, accepted, f"{sentence} (it is {accepted.state})")
    return 0


def _size(words: Sequence[str]) -> dict[str, int]:
    """`worker=4 ps=2` as replicas by role."""
    size: dict[str, int] = {}
    for word in words:
        role, given, count = word.partition("=")
        if not (role and given):
            raise CliError(f"expected ROLE=N, such as worker=4, not {word[:100]!r}", status=2)
        if role in size:
            raise CliError(f"role {role[:100]} is given twice", status=2)
        size[role] = _count(count)
    return size


async def _size_of_one_role(client: Client, job: str, words: Sequence[str]) -> dict[str, int]:
    """`4` as replicas of the job's one role."""
    if len(words) > 1:
        raise CliError(f"expected ROLE=N, such as worker=4, not {words[0][:100]!r}", status=2)
    count = _count(words[0])
    roles = list((await client.job(job)).size)
    if len(roles) != 1:
        raise CliError(f"it has several roles: say which, such as {' '.join(f'{role}={count}' for role in roles)}")
    return {roles[0]: count}


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        raise CliError(f"expected a number of replicas, not {text[:100]!r}", status=2)
    return int(text)


async def the_job(client: Client, wanted: str) -> str:
    """The id of a job, or the name if no job of it is open. A name of several open jobs is refused."""
    return await named_job(client, wanted) or wanted


async def named_job(client: Client, wanted: str) -> str | None:
    """As `the_job`; None if no job has the name, or if the text names elements of an array."""
    if wanted.startswith(ID_BEGINS) or "_" in wanted:
        return wanted if "_" not in wanted else None
    named = (await client.jobs(name=wanted, limit=100)).jobs
    still_open = [job.id for job in named if not job.state.final]
    if len(still_open) > 1:
        raise CliError(f"{len(still_open)} open jobs have the name {wanted}: {', '.join(still_open)}")
    if still_open:
        return still_open[0]
    return wanted if named else None


async def each(
    client: Client,
    args: argparse.Namespace,
    ids: Sequence[str],
    one: Ask,
    sentence: str,
    *,
    summary: str = "{count} of {asked} accepted",
) -> int:
    """Send one request for each; a refusal does not keep the others from being sent. Of more than EACH_SHOWN_MAX,
    several are sent at once, and one line, the `summary`, is printed for all that were accepted."""
    many = len(ids) > EACH_SHOWN_MAX
    accepted, refused = 0, 0
    with _bar(len(ids), shown=many and sys.stderr.isatty()) as advance:
        step = AT_ONCE_MAX if many else 1
        for group in (ids[at : at + step] for at in range(0, len(ids), step)):
            for wanted, answer in zip(group, await _answers(client, group, one), strict=True):
                advance()
                if isinstance(answer, Accepted | ArrayAsked):
                    accepted += 1
                    _print_accepted(args, answer, sentence, many=many)
                    continue
                if len(ids) == 1:
                    raise answer
                refused += 1
                if refused <= EACH_SHOWN_MAX:
                    print(f"weft: {clean(wanted)}: {clean(answer.reason)}", file=sys.stderr)
    if refused > EACH_SHOWN_MAX:
        print(f"weft: {refused} in all were refused; the first {EACH_SHOWN_MAX} are shown", file=sys.stderr)
    if many and not args.json:
        print(summary.format(count=accepted, asked=len(ids)), flush=True)
    return 1 if refused else 0


async def _answers(client: Client, group: Sequence[str], one: Ask) -> list[Accepted | ArrayAsked | Refused | CliError]:
    """The answers to requests that are sent at once, in the order of the group."""

    async def answer(wanted: str) -> Accepted | ArrayAsked | Refused | CliError:
        try:
            return await one(client, wanted)
        except (Refused, CliError) as error:
            return error

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(answer(wanted)) for wanted in group]
    return [task.result() for task in asked]


def _print_accepted(args: argparse.Namespace, answer: Accepted | ArrayAsked, sentence: str, *, many: bool) -> None:
    if many and not args.json:
        return
    if isinstance(answer, ArrayAsked):
        page.answered(args, answer, arrays.asked_sentence(answer))
    else:
        page.answered(args, answer, sentence.format(id=answer.id, state=answer.state))


@contextmanager
def _bar(total: int, *, shown: bool) -> Iterator[Callable[[], None]]:
    """A bar on stderr; `yield`s the function that advances it by one."""
    if not shown:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress  # slow to import, seldom shown

    with Progress(BarColumn(), MofNCompleteColumn(), console=page.console(sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
