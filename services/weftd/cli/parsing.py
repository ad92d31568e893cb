"""The parser of the command line: its mistakes in the words of the person who types."""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from weftd.cli.formatting import clean

SHOWN_MAX = 100  # characters of a mistake that are shown
_CHOICE = re.compile(r"argument (?P<what>.+?): invalid choice: (?P<given>.*) \(choose from (?P<known>.*)\)", re.DOTALL)
_VALUE = re.compile(r"argument (?P<what>.+?): invalid (?P<kind>int|float|number) value: (?P<given>.*)", re.DOTALL)
_OF_THE_CLUSTER = ("url", "token", "cluster_context")  # options of every command, of which no refusal is
_REQUIRED = "the following arguments are required: "
_KINDS = {"int": "a whole number", "float": "a number", "number": "a number"}


class Parser(argparse.ArgumentParser):
    """Prints the mistake in one line, after the usage, like every refusal of `weft`."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"weft: {clean(in_words(message))}\n")


def in_words(message: str) -> str:
    """A message of argparse, with what would be right."""
    if found := _CHOICE.fullmatch(message):
        known = [name.strip().strip("'") for name in found["known"].split(",")]
        given = found["given"].strip("'\"")
        close = meant(given, known)
        return f"{found['what']}: there is no {shown(given)}{close or ';'} there is {', '.join(known)}"
    if found := _VALUE.fullmatch(message):
        return f"{found['what']}: expected {_KINDS[found['kind']]}, not {shown(found['given'])}"
    if message.startswith(_REQUIRED):
        return f"{message.removeprefix(_REQUIRED)} is missing"
    plain = message.removeprefix("argument ").replace("not allowed with argument ", "not allowed with ")
    return plain.replace("expected one argument", "its value is missing")


def unknown_options(name: str, parser: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    """The sentence for words that the command does not know."""
    typed = [word.partition("=")[0] for word in unknown]
    known = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    close = meant(next((word for word in typed if word.startswith("-")), ""), known)
    return f"{name} knows no {shown(' '.join(unknown))}{close or ';'} `weft {name} --help` lists what it knows"


def place_of(option: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """Where a command takes an option, as `weft ps --url …`; empty if it takes none such. `words`: those after it."""
    for action in parser._actions:
        if option in action.option_strings:
            return f"{parser.prog} {option}{'' if action.nargs == 0 else ' …'}"
        if isinstance(action, argparse._SubParsersAction):
            verbs = [action.choices[word] for word in words if word in action.choices]
            if verbs and (place := place_of(option, verbs[0], ())):
                return place
    return ""


def typed(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Iterator[argparse.Action]:
    """Options of the chosen command and of its subcommand."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            if chosen := action.choices.get(str(getattr(args, action.dest, ""))):
                yield from typed(chosen, args)
        elif action.dest != "help":
            yield action


def names_of(actions: Sequence[argparse.Action]) -> dict[str, str]:
    """Display names of options by their internal names: `--label`, `JOB`."""
    return {
        action.dest: next((word for word in action.option_strings if word.startswith("--")), str(action.metavar))
        for action in actions
        if action.dest not in _OF_THE_CLUSTER
    }


def nothing_given(actions: Sequence[argparse.Action], args: argparse.Namespace) -> str:
    """The first word that is empty, such as a variable of the shell without a value: it names no job, and no file. The
    words of a job's own command may be empty."""
    for action in actions:
        given = getattr(args, action.dest, None)
        words = given if isinstance(given, list) else [given]
        named = not action.option_strings and action.dest != "command" and given != action.default
        if named and "" in words:
            return str(action.metavar)
    return ""


def meant(given: str, known: Sequence[str]) -> str:
    """`; did you mean running?`, if one of these is like what was given."""
    import difflib  # a line without a mistake needs none

    close = difflib.get_close_matches(given.lower(), known, n=1) if 0 < len(given) <= SHOWN_MAX else []
    return f"; did you mean {close[0]}?" if close else ""


def shown(text: str) -> str:
    """A text that was typed, cut if it is long."""
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
