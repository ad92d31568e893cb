"""A translated job, and how it is written as YAML with remarks."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9/._-]*").fullmatch
_NO_TEXT = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*").fullmatch
_SHORT_MAX = 88  # characters of a list or mapping that stays on one line


class Remark(Struct, frozen=True):
    """A remark for a person about one part of the file. `where`: the option or field, and its line if known."""

    where: str
    sentence: str


class Translated(Struct, frozen=True, kw_only=True):
    """A specification as plain values, with remarks on what could not be translated or means something else.

    `mistakes`: those of the remarks that are about values or words that make no sense. `left`: each option that was not
    translated, with its value.
    """

    spec: dict[str, Any]
    remarks: tuple[Remark, ...]
    mistakes: tuple[Remark, ...] = ()
    left: dict[str, str] = {}


def name_of(text: str, default: str = "job") -> str:
    """A text as the name of a job."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-") or default


def page_of(translated: Translated, source: str) -> str:
    """The YAML of a job, under its remarks."""
    lines = [f"# Translated from {_one_line(source)}. Every field: docs/job-file.md"]
    if translated.remarks:
        lines.append("# Not translated, or with another meaning in Weft:")
        lines += [f"#   {_one_line(each.where)}: {_one_line(each.sentence)}" for each in translated.remarks]
    lines += lines_of(translated.spec)
    return "\n".join(lines) + "\n"


def lines_of(fields: Mapping[str, Any]) -> list[str]:
    """The lines of a specification as YAML."""
    return _fields(fields, 0)


def _fields(fields: Mapping[str, Any], depth: int) -> list[str]:
    lines: list[str] = []
    margin = "  " * depth
    for name, value in fields.items():
        head = f"{margin}{_key(name)}:"
        short = f"{head} {flow(value)}"
        if isinstance(value, Mapping) and value and ((depth < 2 and name == "roles") or len(short) > _SHORT_MAX):
            lines += [head, *_fields(value, depth + 1)]
        elif isinstance(value, list) and any(isinstance(part, str) and "\n" in part for part in value):
            lines += [head, *(line for part in value for line in _item(part, margin))]
        else:
            lines.append(short)
    return lines


def _item(value: Any, margin: str) -> list[str]:
    """One item of a list; a text of several lines as a block, if YAML can keep it so."""
    if not (isinstance(value, str) and "\n" in value and _is_block(value)):
        return [f"{margin}- {flow(value)}"]
    keep = "|+" if value.endswith("\n\n") or value == "\n" else "|" if value.endswith("\n") else "|-"
    body = value.removesuffix("\n").split("\n")
    return [f"{margin}- {keep}2", *(f"{margin}  {line}" if line else "" for line in body)]


def _is_block(text: str) -> bool:
    return all(char in "\n\t" or char.isprintable() for char in text) and not text.startswith(("\n", " "))


def flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)}: {flow(part)}" for name, part in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(flow(part) for part in value) + "]"
    return quoted(value) if isinstance(value, str) else msgspec.json.encode(value).decode()


def quoted(text: str) -> str:
    """A text as YAML has it: in quotes unless it is surely plain, and in one line."""
    if _PLAIN(text) and text.lower() not in _NO_TEXT:
        return text
    told = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else _escaped(char) for char in told)


def _escaped(char: str) -> str:
    return "?" if 0xD800 <= ord(char) < 0xE000 else f"\\U{ord(char):08x}"


def _key(name: str) -> str:
    return name if _NAME(name) and name.lower() not in _NO_TEXT else quoted(name)


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
