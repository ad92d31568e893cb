"""`weft replay`: derive what the scheduler decided anew, from what it was told, and say where it first differs.

It runs the scheduler's own code of this version over the history that the cluster has recorded, or over a file. The
exit status is 0 where every decision comes out as it was taken, 1 where one does not. Needs an administrator's token.
"""

import argparse
import contextlib
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import msgspec
from msgspec import Struct

from libs.domain.job import Step
from libs.messages.history import Record
from services.cli import connection, page
from services.cli.complaint import Complaint
from services.cli.words import clean, count
from services.scheduler.picture import NodeChange
from services.scheduler.replay import Difference, Replay


class Replayed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `--json` prints."""

    identical: bool
    turns: int
    decisions: int
    records: int
    skipped: int = 0
    difference: Difference | None = None


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "replay", help="derive anew what the scheduler decided, and compare", description=__doc__
    )
    parser.add_argument("--pool", default="default", help="whose history (default: default)")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--save", type=Path, metavar="FILE", help="keep the history there, too")
    files.add_argument("--file", type=Path, metavar="FILE", help="one that was saved, instead of the cluster's")
    connection.options(parser)
    parser.set_defaults(func=replay)


async def replay(args: argparse.Namespace) -> int:
    made = Replay()
    with _kept(args.save) as kept:
        async with contextlib.aclosing(_records(args)) as records:
            async for record in records:
                if kept is not None:
                    kept.write(msgspec.json.encode(record).decode() + "\n")
                made.feed(record)
    if not made.records and made.difference is None:
        raise Complaint(f"no history of pool {args.pool} is recorded")
    _say(made, args)
    return 0 if made.difference is None else 1


async def _records(args: argparse.Namespace) -> AsyncGenerator[Record, None]:
    if args.file is not None:
        for record in _read(args.file):
            yield record
        return
    async with connection.connected(args) as client:
        view = await client.history(pool=args.pool)
        while view.records:
            for record in view.records:
                yield record
            view = await client.history(pool=args.pool, after=view.after)


def _read(path: Path) -> list[Record]:
    try:
        return _RECORDS.decode_lines(path.read_bytes())
    except OSError as error:
        raise Complaint(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise Complaint(f"{path} is no history that was saved: {error}") from error


@contextlib.contextmanager
def _kept(path: Path | None) -> Iterator[TextIO | None]:
    if path is None:
        yield None
        return
    try:
        opened = path.open("w")
    except OSError as error:
        raise Complaint(f"cannot write {path}: {error.strerror}") from error
    with opened:
        yield opened


def _say(made: Replay, args: argparse.Namespace) -> None:
    if args.json:
        page.json_line(
            Replayed(
                identical=made.difference is None,
                turns=made.turns,
                decisions=made.steps,
                records=made.records,
                skipped=made.skipped,
                difference=made.difference,
            )
        )
        return
    end = "identical" if made.difference is None else "then it differs"
    print(f"{count(made.turns, 'turn')}, {count(made.steps, 'decision')} in {count(made.records, 'record')}: {end}")
    if made.skipped:
        print(f"({count(made.skipped, 'record')} at the head skipped: what was known before them is not recorded)")
    if made.difference is not None:
        print(difference_text(made.difference))


def difference_text(found: Difference) -> str:
    """Where it is, and both sides."""
    at = datetime.fromtimestamp(found.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    where = f"leader epoch {found.epoch}, record {found.record}, turn {found.turn}, {at}"
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


_RECORDS = msgspec.json.Decoder(Record)
