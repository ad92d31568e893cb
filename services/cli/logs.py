"""`weft logs`: what a job has written to stdout and stderr."""

import argparse
import asyncio
from collections.abc import Callable
from contextlib import aclosing

import msgspec

from libs.client import Client, Gap
from libs.domain.job import JobState
from libs.domain.quantity import size_text
from libs.messages.http import JobView
from services.cli import connection, page
from services.cli.complaint import Complaint

_EVERY_RANK = "all"
_TAIL_BYTES = 64 << 10  # the first guess at how much holds the last lines

Say = Callable[[bytes], None]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("logs", help="what a job has written; -f to follow", description=__doc__)
    parser.add_argument("job", metavar="JOB", help="its id, or its name: then the newest of that name")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job is over")
    parser.add_argument("--rank", type=_rank, default=0, metavar="N", help="of this rank (default: 0), or `all`")
    parser.add_argument("--role", help="count ranks within this role")
    parser.add_argument("--epoch", type=int, metavar="N", help="of this epoch (default: the newest)")
    parser.add_argument("-n", "--tail", type=int, metavar="LINES", help="only the last lines")
    connection.options(parser)
    parser.set_defaults(func=logs)


async def logs(args: argparse.Namespace) -> int:
    if args.follow and args.tail is not None:
        raise Complaint("--tail and --follow do not go together", status=2)
    async with connection.connected(args, patience=connection.PATIENT_SECONDS if args.follow else None) as client:
        job = await client.job(args.job)
        ranks = range(job.replicas) if args.rank == _EVERY_RANK else [args.rank]
        if args.follow:
            async with asyncio.TaskGroup() as tasks:
                for rank in ranks:
                    tasks.create_task(_follow(client, job.id, rank, args))
        else:
            for rank in ranks:
                if not await _copy(client, job.id, rank, args):
                    page.remark(nothing(job, rank))
    return 0


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


async def _follow(client: Client, job_id: str, rank: int, args: argparse.Namespace) -> None:
    writer = _writer(args, rank)
    following = client.follow_log(job_id, rank=rank, epoch=args.epoch, role=args.role, gap=_tell_gap)
    async with aclosing(following) as chunks:
        async for chunk in chunks:
            writer.write(chunk)
    writer.close()


async def _copy(client: Client, job_id: str, rank: int, args: argparse.Namespace) -> bool:
    """All of it as it comes, or its last lines. False: there is nothing."""
    writer, any_found = _writer(args, rank), False
    if args.tail is not None:
        found = await _last(client, job_id, rank, args)
        writer.write(found)
        any_found = bool(found) or not args.tail
    else:
        reading = client.stream_log(job_id, rank=rank, epoch=args.epoch, role=args.role, gap=_tell_gap)
        async with aclosing(reading) as chunks:
            async for chunk in chunks:
                any_found = True
                writer.write(chunk)
    writer.close()
    return any_found


async def _last(client: Client, job_id: str, rank: int, args: argparse.Namespace) -> bytes:
    """The last lines: more bytes are asked for until they hold enough of them."""
    asked = _TAIL_BYTES
    while True:
        found = await client.read_log(job_id, rank=rank, epoch=args.epoch, role=args.role, tail=asked)
        if found.count(b"\n") > args.tail or len(found) < asked:
            return last_lines(found, args.tail)
        asked *= 4


def last_lines(text: bytes, how_many: int) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join(lines[max(0, len(lines) - how_many) :])


class Writer:
    """Copies a log as it comes."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def write(self, chunk: bytes) -> None:
        self._say(chunk)

    def close(self) -> None:
        pass


class LineWriter(Writer):
    """Copies whole lines, each made over: several logs may then share one terminal."""

    def __init__(self, say: Say, make: Callable[[bytes], bytes]) -> None:
        super().__init__(say)
        self._make = make
        self._rest = b""

    def write(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._say(b"".join(self._make(line) + b"\n" for line in lines))

    def close(self) -> None:
        if self._rest:
            self._say(self._make(self._rest) + b"\n")


def _writer(args: argparse.Namespace, rank: int) -> Writer:
    if args.json:
        return LineWriter(page.write, lambda line: json_of(rank, line))
    if args.rank == _EVERY_RANK:
        return LineWriter(page.write, lambda line: b"[%d] %s" % (rank, line))
    return Writer(page.write)


def json_of(rank: int, line: bytes) -> bytes:
    return msgspec.json.encode({"rank": rank, "line": line.decode(errors="replace")})


def _rank(text: str) -> int | str:
    return text if text == _EVERY_RANK else int(text)
