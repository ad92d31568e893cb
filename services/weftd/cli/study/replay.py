"""`weft replay`: derive the scheduler's decisions anew, from its recorded inputs, and show the first difference.

It runs the scheduler's own code of this version over the history that the cluster has recorded, or over a file. The
exit status is 0 where every decision comes out as it was taken, 1 where one does not. Records that this version cannot
read are named, and it goes on at the next record that begins anew. Needs an administrator's token.
"""

import argparse
import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import msgspec
from msgspec import Struct

from weft.domain.job import Step
from weft.domain.spec import JobSpec
from weft.domain.text import plural
from weft.messages.history import Record
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.scheduler.thinking.record.replay import Difference, Replay, Unread
from weftd.scheduler.thinking.state.pool import NodeChange


class SavedSpecification(Struct, frozen=True, kw_only=True):
    """A line of a saved history: a specification, before the first record that refers to it."""

    job_id: str
    spec: JobSpec


Line = Record | SavedSpecification


class Replayed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output of `--json`."""

    identical: bool
    cycles: int
    decisions: int
    records: int
    skipped: int = 0
    unread: tuple[Unread, ...] = ()
    difference: Difference | None = None


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "replay", help="repeat the scheduler's recorded decisions, and compare", description=__doc__
    )
    parser.add_argument("--pool", default="default", help="pool to replay (default: default)")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--save", type=Path, metavar="FILE", help="also save the history to this file")
    files.add_argument("--file", type=Path, metavar="FILE", help="saved history to replay, instead of the cluster's")
    connection.options(parser)
    parser.set_defaults(func=replay)


async def replay(args: argparse.Namespace) -> int:
    made = Replay()
    with _kept(args.save) as kept:
        async with contextlib.aclosing(_lines(args, made)) as lines:
            async for line in lines:
                if kept is not None:
                    kept.write(msgspec.json.encode(line).decode() + "\n")
                if isinstance(line, Record):
                    made.feed(line)
                else:
                    made.specify({line.job_id: line.spec})
    if not made.records and made.difference is None:
        unread = f"; {unread_text(made.unread[0])}" if made.unread else ""
        raise CliError(f"no history of pool {args.pool} is recorded" + (unread and f" that can be read{unread}"))
    _say(made, args)
    return 0 if made.difference is None else 1


async def _lines(args: argparse.Namespace, made: Replay) -> AsyncGenerator[Line, None]:
    """Every record, each behind the specifications that `made` does not have yet."""
    if args.file is not None:
        for line in _read(args.file):
            yield line
        return
    async with connection.connected(args) as client:
        view = await client.history(pool=args.pool)
        while view.records:
            for record in view.records:
                async with contextlib.aclosing(client.specifications(made.lacks(record))) as parts:
                    async for specs in parts:
                        for line in _saved(specs):
                            yield line
                yield record
            view = await client.history(pool=args.pool, after=view.after)


def _saved(specs: Mapping[str, JobSpec]) -> Iterator[SavedSpecification]:
    return (SavedSpecification(job_id=job_id, spec=spec) for job_id, spec in specs.items())


def _read(path: Path) -> Iterator[Line]:
    try:
        with path.open("rb") as file:
            for line in file:
                yield (_SPECIFICATION if line.startswith(b'{"job_id":') else _RECORD).decode(line)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise CliError(f"{path} is no history that was saved: {error}") from error


@contextlib.contextmanager
def _kept(path: Path | None) -> Iterator[TextIO | None]:
    if path is None:
        yield None
        return
    try:
        opened = path.open("w")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error
    with opened:
        yield opened


def _say(made: Replay, args: argparse.Namespace) -> None:
    if args.json:
        page.json_line(
            Replayed(
                identical=made.difference is None,
                cycles=made.cycles,
                decisions=made.steps,
                records=made.records,
                skipped=made.skipped,
                unread=tuple(made.unread),
                difference=made.difference,
            )
        )
        return
    end = "identical" if made.difference is None else "the next decision differs"
    print(
        f"{plural(made.cycles, 'cycle')}, {plural(made.steps, 'decision')} in {plural(made.records, 'record')}: {end}"
    )
    for record in made.unread:
        print(f"({unread_text(record)})")
    if made.skipped:
        why = "is not recorded, or cannot be read" if made.unread else "is not recorded"
        print(f"({plural(made.skipped, 'record')} skipped: the state before them {why})")
    if made.difference is not None:
        print(difference_text(made.difference))


def unread_text(record: Unread) -> str:
    return f"record {record.record} of leader epoch {record.epoch} {clean(record.sentence)}"


def difference_text(found: Difference) -> str:
    """The place of the difference, and both sides."""
    at = datetime.fromtimestamp(found.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    where = f"leader epoch {found.epoch}, record {found.record}, cycle {found.cycle}, {at}"
    lines = [f"{where}: {found.what} {clean(found.sentence)}"]
    if found.recorded is not None or found.derived is not None:
        lines += [f"  recorded: {clean(_one(found.recorded))}", f"  derived:  {clean(_one(found.derived))}"]
    return "\n".join(lines)


def _one(decided: Step | NodeChange | None) -> str:
    """`j-1 version 3 placed, epoch 0, on node-1: fits: node-1 is the fullest node …`"""
    match decided:
        case None:
            return "nothing"
        case NodeChange():
            return f"node {decided.node.id} {decided.event}: {decided.sentence}"
        case Step():
            nodes = dict.fromkeys(each.node_id for each in decided.placement.allocations) if decided.placement else ()
            where = f", on {', '.join(nodes)}" if nodes else ""
            cause = f"{decided.cause.code}: {decided.cause.sentence}"
            return f"{decided.job_id} version {decided.version} {decided.event}, epoch {decided.epoch}{where}: {cause}"


_RECORD = msgspec.json.Decoder(Record)
_SPECIFICATION = msgspec.json.Decoder(SavedSpecification)
