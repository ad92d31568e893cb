"""`sacct`: jobs, those that are over as well. A job is one row: Weft records no steps."""

import os
import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from weft.messages.http import JobView
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.slurm.arguments import Arguments, flat, states_of
from weftd.cli.slurm.fields import FIELDS
from weftd.cli.slurm.numbers import reference_of
from weftd.cli.slurm.reading import Wanted, cluster, listed, named

_DEFAULT = "JobID%22,JobName,Partition,Account,State,ExitCode"
_NAMES = {name.lower(): name for name in FIELDS}
_WIDTH = 10
_FIELD = re.compile(r"([A-Za-z]+)(?:%(-?)([0-9]{1,4}))?")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BACK = re.compile(r"now(?:-([0-9]{1,6})(s|m|h|d|w)[a-z]*)?")


class _Column(Struct, frozen=True, kw_only=True):
    name: str
    width: int
    left: bool

    def drawn(self, text: str) -> str:
        if len(text) > self.width and self.name != "JobID":
            text = text[: self.width - 1] + "+"
        return text.ljust(self.width) if self.left else text.rjust(self.width)


async def sacct(words: Sequence[str]) -> int:
    parser = Arguments("sacct")
    parser.several("-j", "--jobs")
    parser.several("--name")
    parser.several("-r", "--partition")
    parser.several("-s", "--state")
    parser.several("-u", "--user", "--uid")
    parser.add_argument("-S", "--starttime")
    parser.add_argument("-E", "--endtime")
    parser.add_argument("-n", "--noheader", action="store_true")
    parser.add_argument("-o", "--format", default=_DEFAULT)
    parser.add_argument("-P", "--parsable2", action="store_true")
    parser.add_argument("-p", "--parsable", action="store_true")
    parser.add_argument("-X", "--allocations", action="store_true")  # there are no steps
    parser.add_argument("-a", "--allusers", action="store_true")
    parser.add_argument("-D", "--duplicates", action="store_true")
    parser.add_argument("-L", "--allclusters", action="store_true")
    parser.of_the_cluster()
    args = parser.parse_args(words)
    columns = _columns(args.format)
    references = [reference_of(each, os.environ) for each in flat(args.jobs)]
    begin = _moment(args.starttime) if args.starttime else None
    end = _moment(args.endtime) if args.endtime else None
    wanted = Wanted(
        names=tuple(flat(args.name)),
        users=tuple(flat(args.user)),
        pools=tuple(flat(args.partition)),
        states=states_of(flat(args.state)),
        since=0.0 if args.name or references else _midnight() if begin is None else begin,
    )
    async with cluster() as client:
        if references:
            jobs, _ = await named(client, [each for each in references if not each.step])
            jobs = [job for job in jobs if wanted.has(job)]
        else:
            jobs = await listed(client, wanted)
    rows = [job for job in jobs if _within(job, begin, end)]
    ends = "|" if args.parsable else ""
    bare = args.parsable or args.parsable2
    lines = [] if args.noheader else [[column.name for column in columns]]
    if not (args.noheader or bare):
        lines.append(["-" * column.width for column in columns])
    lines += [[clean(FIELDS[column.name](job)).replace("|", " ") for column in columns] for job in rows]
    for cells in lines:
        sys.stdout.write(("|".join(cells) + ends if bare else _aligned(columns, cells)) + "\n")
    return 0


def _aligned(columns: Sequence[_Column], cells: Sequence[str]) -> str:
    return " ".join(column.drawn(cell) for column, cell in zip(columns, cells, strict=True)) + " "


def _columns(text: str) -> list[_Column]:
    found: list[_Column] = []
    for part in text.split(","):
        matched = _FIELD.fullmatch(part)
        if matched is None or matched[1].lower() not in _NAMES:
            raise CliError(f"Invalid field requested: {part[:60]!r}; Weft has {', '.join(FIELDS)}")
        name = _NAMES[matched[1].lower()]
        found.append(_Column(name=name, width=max(1, int(matched[3] or _WIDTH)), left=matched[2] == "-"))
    return found


def _within(job: JobView, begin: float | None, end: float | None) -> bool:
    """Whether it was there, waiting or running, at some time between the two."""
    return (begin is None or job.ended_at is None or job.ended_at >= begin) and (end is None or job.submitted_at <= end)


def _midnight() -> float:
    return datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def _moment(text: str) -> float:
    """`2026-01-31`, `2026-01-31T12:00:00`, `now`, `now-2days`, in local time. Raises CliError."""
    if found := _BACK.fullmatch(text):
        return time.time() - int(found[1] or 0) * _UNITS[found[2] or "s"]
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        known = "2026-01-31, 2026-01-31T12:00:00 or now-2days"
        raise CliError(f"Invalid time specification: {text[:60]!r}; expected such as {known}") from None
