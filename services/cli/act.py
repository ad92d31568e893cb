"""What a person may ask of jobs and nodes that are there: cancel, requeue, priority, scale, share, drain,
resume."""

import argparse
import sys
from collections.abc import Awaitable, Callable, Sequence

from libs.client import Client, RefusedError
from libs.messages.http import Accepted, ArrayAsked
from services.cli import arrays, connection, page
from services.cli.complaint import Complaint

_ID_PREFIX = "j-"
_DIGITS_MAX = 9
_SCALE = (
    "change a job's size, within the min and max of its roles: one that waits starts with it, one that runs takes it"
    " live or by a restart from its checkpoint, as it is specified; it grows as soon as there is room"
)

_REQUEUE = "send jobs back to the queue, to start again from their checkpoints"

_SHARE = (
    "change the share of a GPU that each rank of a running job has: less at once, more only as far as its GPU has room,"
    " which its event `tuned` says; a job that begins anew has what its specification says"
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    _add(commands, "cancel", cancel, "JOB", "end jobs: SIGTERM, their grace, SIGKILL")
    parser = _add(commands, "requeue", requeue, "JOB", _REQUEUE)
    parser.add_argument("--failed", action="store_true", help="of an array: only the elements that failed")
    _add(commands, "drain", drain, "NODE", "give nodes no new jobs; what runs there goes on")
    _add(commands, "resume", resume, "NODE", "let drained nodes take jobs again")
    parser = commands.add_parser("priority", help="change a job's priority")
    parser.add_argument("job", metavar="JOB", help="its id, or its name if only one open job has it")
    parser.add_argument("priority", type=int, metavar="N", help="-1000 to 1000; higher goes first")
    connection.options(parser)
    parser.set_defaults(func=priority)
    parser = commands.add_parser("scale", help="change a job's size", description=_SCALE)
    parser.add_argument("job", metavar="JOB", help="its id, or its name if only one open job has it")
    parser.add_argument("size", nargs="+", metavar="ROLE=N", help="replicas of a role; N alone if the job has one role")
    connection.options(parser)
    parser.set_defaults(func=scale)
    parser = commands.add_parser("share", help="change a running job's share of a GPU", description=_SHARE)
    parser.add_argument("job", metavar="JOB", help="its id, or its name if only one open job has it")
    parser.add_argument("--request", type=float, metavar="PART", help="what is promised, such as 0.5 of a GPU's time")
    parser.add_argument("--limit", type=float, metavar="PART", help="what it may use while others idle, up to 1")
    parser.add_argument("--role", metavar="ROLE", default="", help="if several of its roles have shares")
    connection.options(parser)
    parser.set_defaults(func=share)


Act = Callable[[argparse.Namespace], Awaitable[int]]


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, act: Act, what: str, summary: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=summary)
    parser.add_argument("ids", nargs="+", metavar=what)
    connection.options(parser)
    parser.set_defaults(func=act)
    return parser


async def cancel(args: argparse.Namespace) -> int:
    async def one(client: Client, job: str) -> Accepted | ArrayAsked:
        return await arrays.cancel(client, job) or await client.cancel(await the_job(client, job))

    return await _each(args, one, "{id} will end (it is {state})")


async def requeue(args: argparse.Namespace) -> int:
    async def one(client: Client, job: str) -> Accepted | ArrayAsked:
        asked = await arrays.requeue(client, job, failed=args.failed)
        return asked or await client.requeue(await the_job(client, job))

    return await _each(args, one, "{id} will go back to the queue (it is {state})")


async def drain(args: argparse.Namespace) -> int:
    async def one(client: Client, node: str) -> Accepted:
        return await client.drain(node)

    return await _each(args, one, "{id} takes no new jobs")


async def resume(args: argparse.Namespace) -> int:
    async def one(client: Client, node: str) -> Accepted:
        return await client.resume(node)

    return await _each(args, one, "{id} takes jobs again")


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
        raise Complaint("say --request, --limit or both", status=2)
    async with connection.connected(args) as client:
        job = await the_job(client, args.job)
        accepted = await client.share(job, request=args.request, limit=args.limit, role=args.role)
    given = {"a request of": args.request, "a limit of": args.limit}
    wanted = " and ".join(f"{what} {part:g}" for what, part in given.items() if part is not None)
    sentence = f"{accepted.id} should have {wanted} of a GPU, as far as there is room"
    page.answered(args, accepted, f"{sentence} (it is {accepted.state})")
    return 0


def _size(words: Sequence[str]) -> dict[str, int]:
    """`worker=4 ps=2` as replicas by role."""
    size: dict[str, int] = {}
    for word in words:
        role, given, count = word.partition("=")
        if not (role and given):
            raise Complaint(f"expected ROLE=N, such as worker=4, not {word[:100]!r}", status=2)
        if role in size:
            raise Complaint(f"role {role[:100]} is given twice", status=2)
        size[role] = _count(count)
    return size


async def _size_of_one_role(client: Client, job: str, words: Sequence[str]) -> dict[str, int]:
    """`4` as replicas of the job's one role."""
    if len(words) > 1:
        raise Complaint(f"expected ROLE=N, such as worker=4, not {words[0][:100]!r}", status=2)
    count = _count(words[0])
    roles = list((await client.job(job)).size)
    if len(roles) != 1:
        raise Complaint(f"it has several roles: say which, such as {' '.join(f'{role}={count}' for role in roles)}")
    return {roles[0]: count}


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        raise Complaint(f"expected a number of replicas, not {text[:100]!r}", status=2)
    return int(text)


async def the_job(client: Client, wanted: str) -> str:
    """The id of a job, or the name if no job of it is open. A name of several open jobs is refused."""
    if wanted.startswith(_ID_PREFIX):
        return wanted
    named = (await client.jobs(name=wanted, limit=100)).jobs
    still_open = [job.id for job in named if not job.state.final]
    if len(still_open) > 1:
        raise Complaint(f"{len(still_open)} open jobs have the name {wanted}: {', '.join(still_open)}")
    return still_open[0] if still_open else wanted


async def _each(
    args: argparse.Namespace, one: Callable[[Client, str], Awaitable[Accepted | ArrayAsked]], sentence: str
) -> int:
    """Send one request for each; a refusal does not keep the others from being sent."""
    status = 0
    async with connection.connected(args) as client:
        for wanted in args.ids:
            try:
                accepted = await one(client, wanted)
            except (RefusedError, Complaint) as error:
                if len(args.ids) == 1:
                    raise
                print(f"weft: {wanted}: {error.reason}", file=sys.stderr)
                status = 1
            else:
                told = (
                    arrays.asked_sentence(accepted)
                    if isinstance(accepted, ArrayAsked)
                    else sentence.format(id=accepted.id, state=accepted.state)
                )
                page.answered(args, accepted, told)
    return status
