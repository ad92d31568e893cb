"""The verbs of `weft` and their options, read from their parsers, for the page of reference."""

import argparse
import importlib
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from weftd.cli.commands import COMMANDS
from weftd.cli.parsing import Parser


class Option(Struct, frozen=True, kw_only=True):
    """One option. `values`: the words that it takes, where these are fixed."""

    names: tuple[str, ...]
    summary: str = ""
    values: tuple[str, ...] = ()


class Verb(Struct, frozen=True, kw_only=True):
    """One verb. `arguments`: of each argument its name and its meaning, as in `--help`."""

    name: str
    summary: str
    description: str = ""
    arguments: tuple[tuple[str, str], ...] = ()
    options: tuple[Option, ...] = ()


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
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner, its in _without_aliases(action.choices).items():
                below = _verb(inner, "", its)
                arguments += [(f"{inner} {argument}", meaning) for argument, meaning in below.arguments]
                options += [option for option in below.options if option not in options]
        elif action.option_strings:
            options.append(_option(action))
        else:
            metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
            arguments.append((metavar, _help(action)))
    return Verb(
        name=name,
        summary=summary,
        description=parser.description or "",
        arguments=tuple(arguments),
        options=tuple(options),
    )


def _option(action: argparse.Action) -> Option:
    return Option(names=tuple(action.option_strings), summary=_help(action), values=_values(action))


def _values(action: argparse.Action) -> tuple[str, ...]:
    choices: Sequence[object] = tuple(action.choices or ())
    return tuple(str(choice) for choice in choices)


def _help(action: argparse.Action) -> str:
    text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
    return " ".join(text.replace("%%", "%").split())
