"""`weft schedules`: jobs that run again and again, each with its next run, and with its last run and the state of that.

`schedule: "0 3 * * *"` in a job file, or `weft run --schedule "0 3 * * *"`, makes one: docs/schedules.md.
"""

import argparse

from weft.messages.http.schedules import SchedulesView, ScheduleView
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError

VERBS = ("list", "pause", "resume", "remove")
NONE = 'no schedules; `weft run --schedule "0 3 * * *" -- COMMAND` makes one'


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "schedules",
        help="list, pause, resume and remove schedules",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "verb",
        nargs="?",
        default="list",
        choices=VERBS,
        help="list (default); pause: start no run until it is resumed; resume: go on with the next time; remove. Runs"
        " that were submitted go on",
    )
    parser.add_argument("schedules", nargs="*", metavar="SCHEDULE", help="names or ids of schedules")
    connection.options(parser)
    parser.set_defaults(func=schedules)


async def schedules(args: argparse.Namespace) -> int:
    if (args.verb == "list") == bool(args.schedules):
        wrong = "list takes no SCHEDULE" if args.schedules else f"{args.verb} which? SCHEDULE is missing"
        raise CliError(wrong, status=2)
    async with connection.connected(args) as client:
        if args.verb == "list":
            _show(await client.schedules(), args)
            return 0
        change = {"pause": client.pause_schedule, "resume": client.resume_schedule, "remove": client.remove_schedule}
        for name in dict.fromkeys(args.schedules):
            view = await change[args.verb](name)
            page.answered(args, view, _sentence(args.verb, view))
    return 0


def _show(found: SchedulesView, args: argparse.Namespace) -> None:
    from weftd.cli.rendering.schedules import schedule_table  # imports rich, which is slow to import

    page.drawn(args, found, lambda context: schedule_table(found.schedules, context), "" if found.schedules else NONE)


def _sentence(verb: str, view: ScheduleView) -> str:
    match verb:
        case "pause":
            return f"{view.name} is paused"
        case "remove":
            return f"{view.name} is removed"
        case _:
            when = "" if view.next_run_at is None else f": its next run is due {page.context().zoned(view.next_run_at)}"
            return f"{view.name} goes on{when}"
