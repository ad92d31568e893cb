"""`weft logs`: what a job has written to stdout and stderr."""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing

import msgspec

from weft.client import Client, Gap, Refused
from weft.client.failure import failed_rank
from weft.client.place import PATIENT_SECONDS
from weft.client.terminal import TerminalText
from weft.domain.job import CauseCode, JobState
from weft.domain.quantity import size_text
from weft.domain.selection import is_pattern
from weft.messages.http import ArrayView, EventView, JobView
from weftd.cli import arrays, connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.jobs import selection

EVERY_RANK = "all"
JOBS_MAX = 20  # whose logs are shown at once
_TAIL_BYTES = 64 << 10  # the first guess at the size of the last lines
Say = Callable[[bytes], None]
EVENTS_MAX = 500
"""The newest events of a job in which a loss is looked for."""
NOTED = "weft.jobs.noted"


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("logs", help="print the output of a job; -f to follow", description=__doc__)
    parser.add_argument(
        "jobs",
        nargs="*",
        metavar="JOB",
        help="id of the job, its name (then the newest of that name), or a pattern of names",
    )
    parser.add_argument("-f", "--follow", action="store_true", help="follow the log until the job has ended")
    parser.add_argument(
        "--rank", type=_rank, metavar="N", help="rank to print, or `all` (default: the rank that failed first, else 0)"
    )
    parser.add_argument("--role", help="count ranks within this role")
    parser.add_argument("--epoch", type=int, metavar="N", help="epoch to print (default: the newest)")
    parser.add_argument("-n", "--tail", type=int, metavar="LINES", help="print only the last N lines")
    parser.add_argument("--raw", action="store_true", help="do not filter escape sequences on a terminal")
    selection.options(parser)
    connection.options(parser)
    parser.set_defaults(func=logs)


async def logs(args: argparse.Namespace) -> int:
    if args.follow and args.tail is not None:
        raise CliError("--tail and --follow do not go together", status=2)
    patience = PATIENT_SECONDS if args.follow else None
    async with connection.connected(args, patience=patience) as client:
        jobs = await _jobs(client, args)
        args.several = len(jobs) > 1
        each = [(job, rank) for job in jobs for rank in await _ranks(client, job, args)]
        if args.follow:
            await _follow_each(client, each, args)
        else:
            for job, rank in each:
                if await _one(_copy(client, job, rank, args), job, rank, args) is False:
                    page.remark(nothing(job, rank))
        for job in jobs:
            await _tell_losses(client, job, [rank for each_job, rank in each if each_job is job], args)
    return 0


async def _tell_losses(client: Client, job: JobView, ranks: Sequence[int], args: argparse.Namespace) -> None:
    """Report the missing parts of the logs shown: of all epochs that were followed, else of the one."""
    if args.follow:
        job = await client.job(job.id)
    shown = job.epoch if job.placement is not None else max(0, job.epoch - 1)
    epoch = args.epoch if args.epoch is not None or args.follow else shown
    for sentence in await lost_output(client, job, ranks, role=args.role, epoch=epoch):
        page.remark(sentence)


async def follow_jobs(client: Client, jobs: Sequence[JobView]) -> None:
    """Show the output of several jobs, each line with its job, until all of them are over."""
    args = argparse.Namespace(rank=None, role=None, epoch=None, raw=False, json=False, several=True)
    await _follow_each(client, [(job, 0) for job in jobs], args)


async def _follow_each(client: Client, each: Sequence[tuple[JobView, int]], args: argparse.Namespace) -> None:
    async with asyncio.TaskGroup() as tasks:
        for job, rank in each:
            tasks.create_task(_one(_follow(client, job, rank, args), job, rank, args))


async def _jobs(client: Client, args: argparse.Namespace) -> Sequence[JobView]:
    """The jobs that are meant: one by its id or name, or all that a pattern or the options select."""
    wanted = selection.filter_of(args, now=time.time())
    if wanted.is_empty and len(args.jobs) == 1 and not is_pattern(args.jobs[0]):
        found = await arrays.job_or_array(client, args.jobs[0])
        return await _elements(client, found) if isinstance(found, ArrayView) else [found]
    if wanted.is_empty and not args.jobs:
        raise CliError("say which job: by its id, its name, or an option such as --name 'train-*'", status=2)
    matching = (await selection.matching(client, wanted, args.jobs, states=(), limit=JOBS_MAX + 1)).jobs
    if not matching:
        raise CliError(selection.nothing_matches(wanted, args.jobs, ()))
    if len(matching) > JOBS_MAX:
        raise CliError(f"more than {JOBS_MAX} jobs match: logs shows no more at once")
    return [await client.job(job.id) for job in matching]


async def _elements(client: Client, array: ArrayView) -> Sequence[JobView]:
    """All elements of an array, if there are few."""
    if array.elements > JOBS_MAX:
        raise CliError(
            f"{array.name} has {array.elements} elements, and logs shows no more than {JOBS_MAX} at once: say which,"
            f" such as {array.name}_3"
        )
    return [await client.job(job.id) for job in (await client.elements(array.id)).jobs]


async def _ranks(client: Client, job: JobView, args: argparse.Namespace) -> Sequence[int]:
    """The requested ranks: of a failed job, by default the one that failed first."""
    if args.rank == EVERY_RANK:
        return await _every_rank(client, job, args)
    if args.rank is not None:
        return [int(args.rank)]
    failed = failed_rank(job) if args.epoch in (None, job.epoch) and args.role is None else None
    if failed is not None and job.replicas > 1:
        from weftd.cli.rendering.jobs import failure_text  # imports rich, which is slow to import

        page.remark(f"rank {failed} of {job.name}, which failed first ({failure_text(job)}); --rank all shows all")
    return [failed or 0]


async def _every_rank(client: Client, job: JobView, args: argparse.Namespace) -> Sequence[int]:
    """All ranks that the epoch ever had; with a role, counted within it."""
    epoch, placement = job.epoch, job.placement
    ranks = {each.rank: each.role for each in placement.allocations} if placement is not None else {}
    if args.epoch not in (None, epoch) or placement is None or placement.changes:
        epochs: dict[int, dict[int, str]] = {}
        for event in await client.story(job.id):
            if (where := event.data.placement) is not None:
                epochs.setdefault(event.data.epoch, {}).update({each.rank: each.role for each in where.allocations})
        ranks = epochs.get(max(epochs, default=0) if args.epoch is None else args.epoch, {})
    if not ranks:
        return range(job.replicas)  # none is placed yet
    return sorted(ranks) if args.role is None else range(list(ranks.values()).count(args.role) or 1)


async def _one(reading: Coroutine[None, None, bool], job: JobView, rank: int, args: argparse.Namespace) -> bool:
    """One rank's log. Among several ranks or jobs, a missing log is reported and ends no other."""
    try:
        return await reading
    except Refused as error:
        if args.rank != EVERY_RANK and not args.several:
            raise
        page.remark(f"{f'{job.name} ' * args.several}rank {rank}: {clean(error.reason)}")
        return True


def nothing(job: JobView, rank: int) -> str:
    """Why there is nothing to show."""
    if job.state is JobState.QUEUED and not job.attempts and job.epoch == 0:
        return f"{job.name} has written nothing: it has not started yet (`weft explain {job.id}` says why)"
    if job.state.final:
        return f"rank {rank} of {job.name} wrote nothing"
    return f"rank {rank} of {job.name} has written nothing yet: it is {job.state}"


def gap_text(gap: Gap) -> str:
    """`bytes 0 to 1288490188 (1.2GiB) of epoch 0 are missing: …`."""
    if gap.ends is None:
        return f"the rest of epoch {gap.epoch} is missing, from byte {gap.begins}: {gap.reason}"
    size = size_text(gap.ends - gap.begins)
    return f"bytes {gap.begins} to {gap.ends} ({size}) of epoch {gap.epoch} are missing: {gap.reason}"


def _tell_gap(gap: Gap) -> None:
    page.remark(gap_text(gap))


async def _follow(client: Client, job: JobView, rank: int, args: argparse.Namespace) -> bool:
    writer = _writer(args, job, rank)
    following = client.follow_log(job.id, rank=rank, epoch=args.epoch, role=args.role, gap=_tell_gap)
    async with aclosing(following) as chunks:
        async for chunk in chunks:
            writer.write(chunk)
    writer.close()
    return True


async def _copy(client: Client, job: JobView, rank: int, args: argparse.Namespace) -> bool:
    """Copy the whole log as it comes, or its last lines. False: it is empty."""
    writer, any_found = _writer(args, job, rank), False
    if args.tail is not None:
        found = await _last(client, job.id, rank, args)
        writer.write(found)
        any_found = bool(found) or not args.tail
    else:
        reading = client.stream_log(job.id, rank=rank, epoch=args.epoch, role=args.role, gap=_tell_gap)
        async with aclosing(reading) as chunks:
            async for chunk in chunks:
                any_found = True
                writer.write(chunk)
    writer.close()
    return any_found


async def _last(client: Client, job_id: str, rank: int, args: argparse.Namespace) -> bytes:
    """The last lines: more bytes are requested until they have enough lines."""
    asked = _TAIL_BYTES
    while True:
        gaps: list[Gap] = []
        reading = client.stream_log(job_id, rank=rank, epoch=args.epoch, role=args.role, tail=asked, gap=gaps.append)
        async with aclosing(reading) as chunks:
            found = b"".join([chunk async for chunk in chunks])
        if found.count(b"\n") > args.tail:
            return last_lines(found, args.tail)
        if len(found) < asked:  # all that there is
            for gap in gaps:
                _tell_gap(gap)
            return last_lines(found, args.tail)
        asked *= 4


def last_lines(text: bytes, how_many: int) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join(lines[max(0, len(lines) - how_many) :])


class Writer:
    """Copies a log as it comes; on a terminal (`screen`) without control characters."""

    def __init__(self, say: Say, *, screen: TerminalText | None = None) -> None:
        self._say = say
        self._screen = screen

    def write(self, chunk: bytes) -> None:
        self._write(self._screen.feed(chunk) if self._screen is not None else chunk)

    def close(self) -> None:
        if self._screen is not None:
            self._write(self._screen.close())

    def _write(self, text: bytes) -> None:
        if text:
            self._say(text)


class LineWriter(Writer):
    """Copies whole lines, each made over: several logs may then share one terminal."""

    def __init__(self, say: Say, make: Callable[[bytes], bytes], *, screen: TerminalText | None = None) -> None:
        super().__init__(say, screen=screen)
        self._make = make
        self._rest = b""

    def close(self) -> None:
        super().close()
        if self._rest:
            self._say(self._make(self._rest) + b"\n")

    def _write(self, text: bytes) -> None:
        *lines, self._rest = (self._rest + text).split(b"\n")
        if lines:
            self._say(b"".join(self._make(line) + b"\n" for line in lines))


def terminal_text(*, raw: bool = False) -> TerminalText | None:
    """The filter that makes a log harmless on a terminal; None elsewhere: its bytes are copied as they are."""
    return TerminalText() if sys.stdout.isatty() and not raw else None


def _writer(args: argparse.Namespace, job: JobView, rank: int) -> Writer:
    if args.json:
        return LineWriter(page.write, lambda line: json_of(rank, line, job=job.id if args.several else ""))
    screen = terminal_text(raw=args.raw)
    marks = [clean(job.name)] * args.several + [str(rank)] * (args.rank == EVERY_RANK)
    if marks:
        head = f"[{' '.join(marks)}] ".encode()
        return LineWriter(page.write, lambda line: head + line, screen=screen)
    return Writer(page.write, screen=screen)


def json_of(rank: int, line: bytes, *, job: str = "") -> bytes:
    """One line as JSON; `job`: its id, where several jobs are shown."""
    told = {"rank": rank, "line": line.decode(errors="replace")}
    return page.harmless(msgspec.json.encode({"job": job, **told} if job else told))


def _rank(text: str) -> int | str:
    return text if text == EVERY_RANK else int(text)


async def lost_output(
    client: Client, job: JobView, ranks: Iterable[int], *, role: str | None, epoch: int | None
) -> list[str]:
    """A sentence for each of these ranks whose output of `epoch`, or of any epoch, was dropped or waits for room.

    `job` is as it is after its log was read. With a `role`, the ranks count within it.
    """
    try:
        story = await client.story(job.id, limit=EVENTS_MAX)
    except Refused:  # The log was read, and that is what was asked for.
        return []
    of_role = [each.rank for each in job.placement.allocations if each.role == role] if job.placement else []
    wanted = {of_role[rank] for rank in ranks if rank < len(of_role)} if role is not None else set(ranks)
    return losses(story, job, wanted, epoch=epoch)


def losses(story: Iterable[EventView], job: JobView, ranks: set[int], *, epoch: int | None) -> list[str]:
    """One sentence for each rank and epoch: a loss, or that output waits, if the epoch still runs."""
    found: dict[tuple[int, int], str] = {}
    for event in story:
        cause, of_epoch = event.data.cause, event.data.epoch
        if event.type != NOTED or cause is None or epoch not in (None, of_epoch):
            continue
        rank = int(cause.numbers.get("rank", 0))
        waits = cause.code is CauseCode.OUTPUT_WAITS and of_epoch == job.epoch and not job.state.final
        if rank in ranks and (waits or cause.code is CauseCode.OUTPUT_LOST):
            sentence = cause.sentence.removeprefix(f"rank {rank}: ")
            found[(of_epoch, rank)] = f"rank {rank} of {job.name}, epoch {of_epoch}: {sentence} (seen at {event.time})"
    return list(found.values())
