"""The jobs that a command is about: by id, the beginning of an id, name, a pattern of names, and by options."""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from weft.client import Client
from weft.domain.job import FINAL, JobState
from weft.domain.selection import is_pattern, simplified
from weft.domain.spec import Kind
from weft.domain.text import listed, plural
from weft.messages.http import JobsView, JobView
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.jobs.moments import moment

OPEN = tuple(state for state in JobState if state not in FINAL)
ENDED = tuple(state for state in JobState if state in FINAL)
ID_BEGINS = "j-"
_PAGE = 1000
_NAMED_MAX = 5  # jobs that are named where a person is asked
_SINCE = "submitted since then: 10m (ago), 14:57, 2026-01-31T12:00, @1769860800"


class Filter(Struct, frozen=True, kw_only=True):
    """The options that select jobs, as the client takes them; `states` is empty if none is given."""

    states: tuple[JobState, ...] = ()
    name: str = ""
    labels: tuple[str, ...] = ()
    tenant: str = ""
    kinds: tuple[str, ...] = ()
    node: str = ""
    since: float | None = None

    @property
    def is_empty(self) -> bool:
        return self == Filter()

    @property
    def query(self) -> dict[str, Any]:
        """All but the states and the name."""
        return {
            "labels": self.labels,
            "tenant": self.tenant,
            "kinds": self.kinds,
            "node": self.node,
            "since": self.since,
        }

    def words(self) -> str:
        """The selection in words for a person: `name mlp-*, state running`."""
        parts = {
            "name": self.name,
            "state": " or ".join(state.value for state in self.states),
            "label": " and ".join(self.labels),
            "tenant": self.tenant,
            "kind": " or ".join(self.kinds),
            "node": self.node,
            "since": "" if self.since is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since)),
        }
        return ", ".join(f"{what} {clean(text)}" for what, text in parts.items() if text)


def options(parser: argparse.ArgumentParser) -> None:
    """The options that select jobs."""
    group = parser.add_argument_group("selection of jobs; a job must match all options")
    group.add_argument(
        "--name", default="", metavar="NAME", help="job name; `*` matches any characters, `?` matches one"
    )
    group.add_argument("--label", action="append", default=[], metavar="K[=V]", help="label of the jobs; repeatable")
    group.add_argument("--tenant", default="", metavar="T", help="tenant of the jobs; for administrators")
    group.add_argument(
        "--kind", action="append", default=[], choices=[kind.value for kind in Kind], metavar="KIND", help="repeat it"
    )
    group.add_argument("--node", default="", metavar="NODE", help="node on which a rank runs, or ran last")
    group.add_argument(
        "--state",
        action="append",
        default=[],
        choices=[state.value for state in JobState],
        metavar="STATE",
        help="state of the jobs; repeatable",
    )
    group.add_argument("--since", metavar="TIME", help=_SINCE)


def sure(parser: argparse.ArgumentParser, verb: str) -> None:
    """The options of a command that changes many jobs at once."""
    parser.add_argument("--all", action="store_true", help=f"{verb} every open job that the options select; asks first")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def filter_of(args: argparse.Namespace, *, now: float) -> Filter:
    """The filter of these options. Raises `CliError`."""
    for label in args.label:
        if "," in label:
            raise CliError("jobs cannot be selected by a label with a comma", field="--label", status=2)
    return Filter(
        states=tuple(dict.fromkeys(JobState(state) for state in args.state)),
        name=simplified(args.name),
        labels=tuple(args.label),
        tenant=args.tenant,
        kinds=tuple(dict.fromkeys(args.kind)),
        node=args.node,
        since=None if args.since is None else _since(args.since, now),
    )


async def matching(
    client: Client,
    wanted: Filter,
    words: Sequence[str] = (),
    *,
    states: Sequence[JobState],
    limit: int = sys.maxsize,
    benchmarks: bool = True,
    elements: bool = True,
    page_size: int = _PAGE,
) -> JobsView:
    """The jobs that the filter leaves, the newest first; with `words`, those that a word means: an id, how one begins,
    a name, or a pattern of names. `states`: if the filter has none."""
    asked = {**wanted.query, "states": wanted.states or states, "page_size": page_size}
    if not words:
        more = {"benchmarks": benchmarks, "elements": elements}
        return await _pages(client, limit=limit, name=wanted.name, **more, **asked)
    found: dict[str, JobView] = {}
    for word in words:
        if wanted.name:
            raise CliError("say JOB or --name, not both", status=2)
        for job in await _meant(client, word, limit, asked):
            found[job.id] = job
    newest = sorted(found.values(), key=lambda job: -job.seq)
    return JobsView(jobs=tuple(newest[:limit]))


async def _meant(client: Client, word: str, limit: int, asked: dict[str, Any]) -> Sequence[JobView]:
    """The jobs of one word. An id comes before a name."""
    if "_" in word:  # an element of an array, such as A_3
        return [await client.job(word)]
    by_id: Sequence[JobView] = ()
    if word.startswith(ID_BEGINS) and not is_pattern(word):
        by_id = (await _pages(client, limit=limit, id_begins=word, **asked)).jobs
    return by_id or (await _pages(client, limit=limit, name=simplified(word), **asked)).jobs


async def _pages(client: Client, *, limit: int, page_size: int, **query: Any) -> JobsView:
    """Join as many pages as the limit needs."""
    found = JobsView(jobs=(), before=0)
    while found.before is not None and (left := limit - len(found.jobs)) > 0:
        more = await client.jobs(limit=min(left, page_size), before=found.before, **query)
        found = JobsView(jobs=(*found.jobs, *more.jobs), before=more.before)
    return found


def nothing_matches(wanted: Filter, words: Sequence[str], states: Sequence[JobState]) -> str:
    """The sentence for a selection that finds nothing."""
    given = ", ".join([*(clean(word) for word in words), *([wanted.words()] if not wanted.is_empty else [])])
    known = set(wanted.states or states)
    which = "open job" if known and known <= set(OPEN) and not wanted.states else "job"
    return f"no {which} matches {given}" if given else f"there is no {which}"


def confirm(jobs: Sequence[JobView], deed: str, *, yes: bool) -> None:
    """Ask before a deed to all of these jobs. Raises `CliError` unless a person agrees."""
    if yes:
        return
    names = listed([f"{clean(job.name)} {clean(job.id)}" for job in jobs], _NAMED_MAX)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CliError(f"this would {deed} {plural(len(jobs), 'job')} ({names}): add --yes if you mean it", status=2)
    print(f"{deed} {plural(len(jobs), 'job')}: {names}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliError("nothing was changed")


def _since(text: str, now: float) -> float:
    at = moment(text, now=now, field="--since")
    try:
        since = float(at)
    except ValueError:
        since = float("nan")
    if not 0 <= since < 2**40:
        raise CliError(
            f"expected a time such as 10m, 14:57 or 2026-01-31T12:00, got {clean(text[:100])}", field="--since"
        )
    return since
