"""Pick the command, run it, and turn expected errors into one line and an exit status.

Exit status: 0 done, 1 refused or failed, 2 the command line makes no sense, 130 Ctrl-C.
"""

import argparse
import errno
import gc
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import NoReturn

from weftd.cli.cli_error import CliError
from weftd.cli.commands import COMMANDS, FAMILIES, load
from weftd.cli.formatting import clean_lines
from weftd.cli.parsing import Parser, names_of, nothing_given, place_of, typed, unknown_options

OBJECTS_BETWEEN_COLLECTIONS = 20_000  # the imports of a command make fewer: nothing of theirs is garbage
_VARIABLES = {"--url": "WEFT_URL", "--token": "WEFT_TOKEN", "--context": "WEFT_CONTEXT"}
INTERRUPTED = 130
BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended


def run() -> NoReturn:
    """The entry point of `weft`."""
    if sys.stdout is None:  # closed by the shell: there is nobody to write to
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it lives as long as the process
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    try:
        status = _dispatch(list(arguments))
        sys.stdout.flush()
    except CliError as cli_error:
        print(f"weft: {clean_lines(str(cli_error))}{_of_versions(cli_error)}", file=sys.stderr)
        return cli_error.status
    except UnicodeEncodeError:  # the word may be a secret, and is not shown
        from weft.client.paths import NO_TEXT  # slow to import

        print(f"weft: {NO_TEXT}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            raise
        _forget_stdout()
        print(f"weft: the output cannot be written: {os.strerror(error.errno)}", file=sys.stderr)
        return 1
    return status


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help", "help"):
        print(_help())
        return 0
    if name in ("-V", "--version", "version"):
        return _version()
    if name not in COMMANDS:
        raise CliError(_misplaced(name, arguments[1:]) or _unknown(name), status=2)
    args = parse(name, arguments)
    import asyncio  # slow to import

    status: int = asyncio.run(args.func(args))
    return status


def parse(name: str, arguments: list[str]) -> argparse.Namespace:
    """Parse, importing only the module of the given command: that keeps `weft ps` quick."""
    parser, command = _parsers(name)
    ours, tail = _split(_listing(command, arguments))
    args, unknown = parser.parse_known_args(_joined(ours))
    if unknown:  # with the command's own usage: that of `weft` lacks its options
        command.error(unknown_options(name, command, unknown))
    if tail is not None:
        if not hasattr(args, "command"):
            command.error(f"{name} takes no command after --")
        args.command = [*args.command, "--", *tail] if args.command else tail
    actions = list(typed(command, args))
    if empty := nothing_given(actions, args):
        command.error(f"{empty} is empty")
    args.option_names = names_of(actions)
    return args


def _listing(command: argparse.ArgumentParser, arguments: list[str]) -> list[str]:
    """`weft token` as `weft token list`, also with options: of a noun without a verb there is a list."""
    verbs = [action for action in command._actions if isinstance(action, argparse._SubParsersAction)]
    without = not verbs or "list" not in verbs[0].choices or any(word in verbs[0].choices for word in arguments[1:])
    if without or "-h" in arguments or "--help" in arguments or (len(arguments) > 1 and arguments[1][:1] != "-"):
        return arguments
    return [arguments[0], "list", *arguments[1:]]


def _parsers(name: str) -> tuple[Parser, Parser]:
    """The parser of `weft` with this command alone, and the command's own."""
    parser = Parser(prog="weft", allow_abbrev=False)
    commands = parser.add_subparsers(dest="subcommand", required=True, parser_class=Parser)
    load(name).add(commands)
    return parser, commands.choices[name]


def _joined(arguments: list[str]) -> list[str]:
    """`--at -10m` as `--at=-10m`: else it would look like an option."""
    for place, (option, value) in enumerate(pairwise(arguments)):
        if option == "--at" and value[:1] == "-" and value[1:2].isdigit():
            return [*arguments[:place], f"--at={value}", *arguments[place + 2 :]]
    return arguments


def _split(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """Split off the job's own command, which follows the first `--`."""
    if "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _misplaced(word: str, rest: Sequence[str]) -> str:
    """The sentence for an option before the command, such as --url; empty if no command in `rest` knows the option.
    Its value is not repeated: it may be a token."""
    option = word.partition("=")[0]
    if not option.startswith("-"):
        return ""
    words = _split(list(rest))[0]
    names = [name for name in words if name in COMMANDS]
    for name in names or ["ps"]:
        if place := place_of(option, _parsers(name)[1], words[words.index(name) + 1 :] if names else ()):
            variable = _VARIABLES.get(option)
            instead = f", or set {variable}" if variable else ""
            return f"{option} belongs after {'the' if names else 'a'} command: `{place}`{instead}"
    return ""


def _unknown(name: str) -> str:
    import difflib  # slow to import

    close = difflib.get_close_matches(name, COMMANDS, n=1)
    meant = f"did you mean `weft {close[0]}`?" if close else "`weft --help` lists them"
    return f"no such {'option' if name.startswith('-') else 'command'}: {name}; {meant}"


def _help() -> str:
    lines = ["usage: weft COMMAND [options]", "", "Weft shares a cluster of GPUs among jobs."]
    for family, names in FAMILIES.items():
        lines += ["", f"{family}:"]
        lines += [f"  {name:<12} {COMMANDS[name].summary}" for name in names]
    lines += [
        "",
        "Times are those of this machine's zone (TZ), unless they end in Z or say UTC.",
        "`weft COMMAND --help` says more. After every COMMAND that asks a cluster, --json, --url, --token and",
        "--context work.",
    ]
    return "\n".join(lines)


def _of_versions(cli_error: CliError) -> str:
    """A line that says whether the client or the gateway is to be upgraded; empty if that is not why it failed."""
    error: BaseException | None = cli_error
    while error is not None:
        if (versions := getattr(error, "versions", "")) and versions not in str(cli_error):
            return f"\n  {versions}"
        error = error.__cause__ if error.__cause__ is not error else None  # raised again, it is its own cause
    return ""


def _version() -> int:
    from weft.version import version  # slow to import, seldom asked

    print(f"weft {version()}")
    return 0


def _forget_stdout() -> None:
    """After a broken pipe: let the interpreter's last flush go to /dev/null instead of failing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    run()
