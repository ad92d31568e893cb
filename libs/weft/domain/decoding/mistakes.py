"""All mistakes in a specification that could not be decoded, each with its field and what would be right."""

import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import msgspec

from weft.domain.quantity import DURATION_PATTERN, SIZE_PATTERN
from weft.domain.spec import IDLE_STOP_PATTERN, TOKEN_PATTERN

MISTAKES_MAX = 20
SHOWN_CHARACTERS_MAX = 60
FIELD_CHARACTERS_MAX = 255
NAME_CHARACTERS_MAX = 63
_SHORT_UNITS = ("K", "M", "G", "T", "Ki", "Mi", "Gi", "Ti")

PATTERN_WORDS = {
    SIZE_PATTERN: "expected a size such as 512MiB or 16GiB",
    DURATION_PATTERN: "expected a duration such as 30s or 1h30m",
    IDLE_STOP_PATTERN: "expected a duration such as 30m or 2h, or never",
}

_BOUND = re.compile(r"Expected `(?:int|float)` (?P<how>[<>]=?) (?P<bound>\S+)")
_LENGTH = re.compile(r"Expected `(?P<type>\w+)` of length (?P<how>[<>]=?) (?P<bound>\d+)")
_TYPE = re.compile(r"Expected `(?P<wanted>[\w |]+)`, got `(?P<given>\w+)`")
_COMPARED = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "names and values",
    "null": "nothing",
}


class Mistake(NamedTuple):
    """One mistake: its field, and the reason for a person."""

    field: str
    reason: str


def mistakes_of(value: object, kind: type[msgspec.Struct], words: Mapping[str, str]) -> list[Mistake]:
    """The mistakes that keep `value` from being a `kind`, at most MISTAKES_MAX. `words` explains each pattern."""
    if value is None:
        return [Mistake("", "the specification is empty")]
    found = _Finder(kind, {**PATTERN_WORDS, **words}).within_struct(value, kind, "")
    return [mistake for _, mistake in zip(range(MISTAKES_MAX), found, strict=False)]


class _Finder:
    def __init__(self, kind: type[msgspec.Struct], words: Mapping[str, str]) -> None:
        self._words = words
        self._homes = _homes(kind)

    def within(self, value: object, kind: Any, path: str) -> Iterator[Mistake]:
        """The mistakes in one part. A part without the shape of its type is one mistake as a whole."""
        bare = _bare(_named(kind) if isinstance(value, dict) else kind)
        if get_origin(bare) is dict and isinstance(value, dict) and value and _is_whole(value, kind):
            for name, part in value.items():
                yield from self._within_item(name, part, bare, path)
        elif get_origin(bare) is tuple and isinstance(value, list) and value and _is_whole(value, kind):
            for number, part in enumerate(value):
                yield from self.within(part, get_args(bare)[0], f"{path}[{number}]")
        elif isinstance(bare, type) and issubclass(bare, msgspec.Struct) and (value is not None or kind is bare):
            yield from self.within_struct(value, bare, path)
        elif (reason := _refusal(value, kind)) is not None:
            yield Mistake(path, plain_reason(self._words_for(reason, value, bare, path), value, kind))

    def within_struct(self, value: object, kind: type[msgspec.Struct], path: str) -> Iterator[Mistake]:
        if not isinstance(value, dict):
            refused = _refusal(value, kind) or "expected names and values"
            yield Mistake(path, plain_reason(self._words_for(refused, value, kind, path), value))
            return
        wrong = False
        hints = _hints(kind)
        for name, part in value.items():
            inner = _joined(path, name)
            if name not in hints:
                wrong = True
                yield Mistake(inner, self._unknown(name, tuple(hints), path))
                continue
            for mistake in self.within(part, hints[name], inner):
                wrong = True
                yield mistake
        for field in msgspec.structs.fields(kind):
            if field.required and field.name not in value:
                wrong = True
                yield Mistake(_joined(path, field.name), "is required")
        if not wrong and (reason := _refusal(value, kind)) is not None:
            yield Mistake(path, reason)

    def _within_item(self, name: object, part: object, kind: Any, path: str) -> Iterator[Mistake]:
        of_name, of_part = get_args(kind)
        if (reason := _refusal(name, of_name)) is not None:
            yield Mistake(path, f"{_shown(name)}: {self._words_for(reason, name, of_name, path)}")
            return
        yield from self.within(part, of_part, _joined(path, str(name)))

    def _unknown(self, name: str, known: tuple[str, ...], path: str) -> str:
        """A field that does not exist, with the field of a similar name, or the place where this one belongs."""
        if len(name) > SHOWN_CHARACTERS_MAX:
            return "no such field"
        if close := _close(name, known, cutoff=0.75):
            return f"no such field; did you mean {close[0]}?"
        homes = [home for home in self._homes.get(name, ()) if home != path and not _same_home(home, path)]
        if homes:
            return f"no such field here; it belongs in {homes[0] or 'the job itself'}"
        elsewhere = _close(name, self._homes, cutoff=0.85)
        if elsewhere:
            return f"no such field; did you mean {_joined(self._homes[elsewhere[0]][0], elsewhere[0])}?"
        return "no such field"

    def _words_for(self, reason: str, value: object, kind: Any, path: str) -> str:
        """The decoder's message, or a better one where the value shows what the user meant."""
        name = path.rpartition(".")[2]
        match value:
            case str() if name == "command":
                return f'expected a list of words, not a string; did you mean command: [sh, -c, "{_shown(value)}"]?'
            case int() if name == "replicas":
                return f"expected names and values, not a number; did you mean replicas: {{want: {value}}}?"
            case int() if name == "retries":
                return f"expected names and values, not a number; did you mean retries: {{max: {value}}}?"
            case str() if _is_enum(kind):
                return _one_of([str(member.value) for member in _bare(kind)], value)
            case bool() | int() | float() if path.startswith(("env.", "labels.")) or ".env." in path:
                return f'expected text, not {_shown(value)}: put it in quotes, "{_shown(value)}"'
            case str() if value.endswith(_SHORT_UNITS) and repr(SIZE_PATTERN) in reason:
                unit = value.rstrip("i")
                return f"{self._words[SIZE_PATTERN]}; did you mean {unit}iB or {unit}B?"
            case str() if repr(TOKEN_PATTERN) in reason and (close := token_like(value)):
                return f"{self._words.get(TOKEN_PATTERN, reason)}; did you mean {close}?"
        for pattern, words in self._words.items():
            if repr(pattern) in reason:
                return words
        return reason


def token_like(text: str) -> str:
    """The name that is most like this text: `resnet_50` as `resnet-50`; empty if no letter is left of it."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()[:NAME_CHARACTERS_MAX]).strip("-")


def plain_reason(reason: str, value: object = None, kind: Any = None) -> str:
    """A message of the decoder in plain words: `must be 0 to 64, got 65`. Any other text stays as it is.

    `value`: what was given, if it is known; `kind`: its type, for both of its bounds.
    """
    got = f", got {_shown(value)}" if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    if found := _BOUND.fullmatch(reason):
        bound = f"{_COMPARED[found['how']]} {found['bound']}"
        return f"must be {_bounds_of(kind) or bound}{got}"
    if found := _LENGTH.fullmatch(reason):
        noun = "characters" if found["type"] == "str" else "items"
        return f"must have {_COMPARED[found['how']]} {found['bound']} {noun}"
    if found := _TYPE.fullmatch(reason):
        expected = " or ".join(_TYPE_WORDS.get(each, each) for each in found["wanted"].split(" | ") if each != "null")
        given = _TYPE_WORDS.get(found["given"], found["given"])
        return f"expected {expected}{got or f', got {given}'}"
    return reason


def _bounds_of(kind: Any) -> str:
    """`0 to 64`, from the type; empty if it has not both bounds."""
    for meta in getattr(kind, "__metadata__", ()) or _meta_of_union(kind):
        if isinstance(meta, msgspec.Meta) and meta.ge is not None and meta.le is not None:
            return f"{meta.ge} to {meta.le}"
    return ""


def _refusal(value: object, kind: Any) -> str | None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return str(error).partition(" - at ")[0]
    return None


def _is_whole(value: dict[Any, Any] | list[Any], kind: Any) -> bool:
    """True if the size of the part is within its bounds, whatever it contains."""
    for meta in getattr(kind, "__metadata__", ()) or _meta_of_union(kind):
        if isinstance(meta, msgspec.Meta) and meta.max_length is not None and len(value) > meta.max_length:
            return False
    return True


def _meta_of_union(kind: Any) -> Iterable[object]:
    for part in get_args(kind) if _is_union(kind) else ():
        yield from getattr(part, "__metadata__", ())


def _bare(kind: Any) -> Any:
    """The type without its bounds, and without None."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if _is_union(kind):
        return _bare(next(part for part in get_args(kind) if part is not type(None)))
    return kind


def _named(kind: Any) -> Any:
    """The struct of a type that takes text or names and values; any other type as it is."""
    parts = get_args(kind) if _is_union(kind) else ()
    return next((part for part in parts if isinstance(part, type) and issubclass(part, msgspec.Struct)), kind)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (UnionType, typing.Union)


def _is_enum(kind: Any) -> bool:
    bare = _bare(kind)
    return isinstance(bare, type) and hasattr(bare, "__members__")


@cache
def _hints(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The types of its fields, with their bounds."""
    return typing.get_type_hints(kind, include_extras=True)


@cache
def _homes(kind: type[msgspec.Struct]) -> Mapping[str, Sequence[str]]:
    """Every field's name, with the places that have such a field, the outermost first."""
    found: dict[str, list[str]] = {}
    waiting = [(kind, "")]
    while waiting:
        each, place = waiting.pop(0)
        for name, part in _hints(each).items():
            found.setdefault(name, []).append(place)
            bare = _bare(part)
            inner = _joined(place, name)
            if get_origin(bare) is dict:
                bare, inner = _bare(get_args(bare)[1]), f"{inner}.worker"
            elif get_origin(bare) is tuple:
                bare, inner = _bare(get_args(bare)[0]), f"{inner}[0]"
            if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
                waiting.append((bare, inner))
    return found


def _same_home(home: str, path: str) -> bool:
    """True if both are fields of a role, at the same depth, in whatever role."""
    return home.startswith("roles.") and path.startswith("roles.") and home.count(".") == path.count(".")


def _close(given: str, known: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """The name that is most like the given one; empty if none is."""
    import difflib  # a command line without a mistake needs none

    return difflib.get_close_matches(given, [*known], n=1, cutoff=cutoff)


def _one_of(names: list[str], value: str) -> str:
    close = [name for name in names if value and name.startswith(value)]
    if len(value) <= SHOWN_CHARACTERS_MAX:
        close = close or _close(value, names)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"expected one of {', '.join(names)}, not {_shown(value)}{meant}"


def _joined(path: str, name: str) -> str:
    """The path of a field within its parent; a name that is too long is cut."""
    short = name[:FIELD_CHARACTERS_MAX]
    return f"{path}.{short}" if path else short


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…"
