"""What may be typed after each verb, read from its parser."""

import argparse
import importlib
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from services.cli.commands import COMMANDS
from services.cli.parsing import Parser

JOBS, NODES, FILES = "jobs", "nodes", "files"
_LIVE = {"JOB": JOBS, "NODE": NODES, "NAME": JOBS}
_OF_A_FILE = frozenset({"FILE", "DIR", "TRACE", "OUT"})


class Option(Struct, frozen=True, kw_only=True):
    """One option. `values`: the words that it takes; `of`: `jobs`, `nodes` or `files`, of which its value is one."""

    names: tuple[str, ...]
    summary: str = ""
    takes_value: bool = False
    values: tuple[str, ...] = ()
    of: str = ""


class Verb(Struct, frozen=True, kw_only=True):
    """One verb. `arguments`: of each argument its name and its meaning, as in `--help`."""

    name: str
    summary: str
    description: str = ""
    arguments: tuple[tuple[str, str], ...] = ()
    options: tuple[Option, ...] = ()
    words: tuple[str, ...] = ()
    of: str = ""


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parser of every verb, in the order of `weft --help`."""
    for name, command in COMMANDS.items():
        commands = Parser(prog="weft").add_subparsers(parser_class=Parser)
        importlib.import_module(command.module).add(commands)
        yield name, commands.choices[name]


def verbs() -> list[Verb]:
    """Every verb with its options, and with those of its own verbs."""
    return [_verb(name, COMMANDS[name].summary, parser) for name, parser in parsers()]


def _without_aliases(choices: Mapping[str, argparse.ArgumentParser]) -> dict[str, argparse.ArgumentParser]:
    """The verbs by their first names: an alias has the same parser."""
    names: dict[int, str] = {}
    return {name: its for name, its in choices.items() if names.setdefault(id(its), name) == name}


def _verb(name: str, summary: str, parser: argparse.ArgumentParser) -> Verb:
    options: list[Option] = []
    arguments: list[tuple[str, str]] = []
    words: list[str] = []
    of = ""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            choices = _without_aliases(action.choices)
            for inner, its in choices.items():
                below = _verb(inner, "", its)
                arguments += [(f"{inner} {argument}", meaning) for argument, meaning in below.arguments]
                options += [option for option in below.options if option not in options]
            words += choices
        elif action.option_strings:
            options.append(_option(action))
        else:
            metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
            arguments.append((metavar, _help(action)))
            words += _values(action)
            of = of or _LIVE.get(metavar, FILES if metavar in _OF_A_FILE else "")
    return Verb(
        name=name,
        summary=summary,
        description=parser.description or "",
        arguments=tuple(arguments),
        options=tuple(options),
        words=tuple(words),
        of=of,
    )


def _option(action: argparse.Action) -> Option:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    takes_value = action.nargs != 0
    return Option(
        names=tuple(action.option_strings),
        summary=_help(action),
        takes_value=takes_value,
        values=_values(action),
        of=_LIVE.get(metavar, FILES if metavar in _OF_A_FILE else "") if takes_value else "",
    )


def _values(action: argparse.Action) -> tuple[str, ...]:
    choices: Sequence[object] = tuple(action.choices or ())
    return tuple(str(choice) for choice in choices)


def _help(action: argparse.Action) -> str:
    text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
    return " ".join(text.replace("%%", "%").split())
