"""Makes the pages of reference in docs from the code: `python -m tests.support.reference` writes them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from tests.support.python_reference import python_reference
from tests.support.reference_words import FIELDS, VARIABLES
from tests.support.verbs import Verb, verbs
from weft.domain.quantity import DURATION_PATTERN, SIZE_PATTERN
from weft.domain.spec import PATH_PATTERN, TOKEN_PATTERN, VOLUME_VARIABLE, JobSpec
from weft.domain.ulimits import BYTES_PATTERN, COUNT_PATTERN, UNLIMITED
from weftd.cli.commands import FAMILIES

ROOT = Path(__file__).parents[2]
ENVIRONMENT = (
    "services/weftd/executor/machine/environment.py",
    "libs/weft/domain/contract.py",
    "libs/weft/domain/decoding/elements.py",
    "services/weftd/gateway/thinking/schedules.py",
)
_MADE = "Made from the code by `python -m tests.support.reference`; a test holds it to the code."
_SET_BY_WEFT = frozenset({"element", "scheduled"})
_GENERAL = ("Lower-case letters", "A size in", "A duration such", "An absolute path", "A container image.")
_OF_PATTERNS = {
    TOKEN_PATTERN: "name",
    SIZE_PATTERN: "size, as `16GiB`",
    DURATION_PATTERN: "duration, as `1h30m`",
    PATH_PATTERN: "absolute path",
    COUNT_PATTERN: f"`{UNLIMITED}`",
    BYTES_PATTERN: f"size, as `16GiB`, or `{UNLIMITED}`",
}


def job_file() -> str:
    """The page of the fields and the environment."""
    parts = [
        "# The job file\n",
        f"{_MADE} Begin with\n`weft init`, submit with `weft submit job.yaml`. YAML 1.2 up to 64 KiB, or JSON up to"
        " 1 MiB. An unknown field is an\nerror; the mistakes of fields are told at once, each with what would be right."
        " `POST /v1/jobs` takes the same.\n",
        *(_table(kind, path) for kind, path in _structs()),
        "## The environment of a run\n",
        "Beside these a process gets the node's `PATH` and nothing of the shell that submits it; `env` and\n"
        "`weft run --env NAME` add to it. [contract.md](contract.md) states which run gets which, and all else that a\n"
        "program can rely on.\n",
        "| variable | what it is |\n|---|---|\n"
        + "".join(f"| `{name}` | {VARIABLES[name]} |\n" for name in sorted(variables())),
    ]
    return "\n".join(parts)


def verbs_page() -> str:
    """The page of the verbs."""
    known = {verb.name: verb for verb in verbs()}
    parts = [
        "# The verbs of `weft`\n",
        f"{_MADE} JOB is an id,\nhow an id begins, or a name. Exit status: 0 done, 1 refused or failed, 2 the command"
        " makes no sense;\n`run --follow` and `wait` exit as the job did. `weft completion bash` completes it all.\n"
        "Times are those of the machine's own zone (`TZ`), unless they end in `Z` or say UTC: the days and hours of\n"
        "`weft usage` are those of UTC.\n",
    ]
    for family, names in FAMILIES.items():
        parts.append(f"## {family}\n")
        parts += [_verb(known[name]) for name in names]
    return "\n".join(parts)


def variables() -> set[str]:
    """Every variable that the code puts into the environment of a run."""
    found = {f"{VOLUME_VARIABLE}…"}
    for path in ENVIRONMENT:
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*", node.value) and len(node.value) > 2:
                    found.add(node.value)
                elif node.value == "WEFT_SWEEP_":
                    found.add("WEFT_SWEEP_…")
    return found


def _structs() -> Iterator[tuple[type[msgspec.Struct], str]]:
    """Every struct of the specification with the path of its fields, the job itself first."""
    waiting: list[tuple[type[msgspec.Struct], str]] = [(JobSpec, "")]
    seen: set[type[msgspec.Struct]] = set()
    while waiting:
        kind, path = waiting.pop(0)
        if kind in seen:
            continue
        seen.add(kind)
        yield kind, path
        for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
            if field.encode_name not in _SET_BY_WEFT:
                waiting += [(each, f"{path}{field.encode_name}{step}") for each, step in _within(field.type)]


def _within(kind: Any) -> list[tuple[type[msgspec.Struct], str]]:
    """The structs in a type, each with what follows the field's name in a path."""
    match kind:
        case inspect.Metadata():
            return _within(kind.type)
        case inspect.UnionType():
            return [found for each in kind.types for found in _within(each)]
        case inspect.StructType():
            return [(kind.cls, ".")]
        case inspect.DictType():
            return [(cls, f".NAME{step}") for cls, step in _within(kind.value_type)]
        case inspect.VarTupleType():
            return [(cls, f"[]{step}") for cls, step in _within(kind.item_type)]
    return []


def _table(kind: type[msgspec.Struct], path: str) -> str:
    title = f"`{path.rstrip('.')}`" if path else "The job"
    told = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    lines = [f"## {title}\n", f"{told}\n", "| field | value | default | meaning |", "|---|---|---|---|"]
    for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        if field.encode_name in _SET_BY_WEFT:
            continue
        meaning = FIELDS.get(f"{kind.__name__}.{field.encode_name}") or _described(field.type)
        assert meaning, (
            f"{kind.__name__}.{field.encode_name} has no meaning: add it to tests/support/reference_words.py"
        )
        cells = (f"`{field.encode_name}`", _value(field.type), _default(field), meaning)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _described(kind: Any) -> str:
    """The description in the type, unless it only says what kind of value it is."""
    if isinstance(kind, inspect.Metadata):
        text = (kind.extra_json_schema or {}).get("description", "")
        if text and not text.startswith(_GENERAL):
            return str(text)
        return _described(kind.type)
    if isinstance(kind, inspect.UnionType):
        return next((text for each in kind.types if (text := _described(each))), "")
    return ""


def _value(kind: Any) -> str:
    match kind:
        case inspect.Metadata():
            return _value(kind.type)
        case inspect.UnionType():
            shown = dict.fromkeys(_value(each) for each in kind.types if not isinstance(each, inspect.NoneType))
            return " or ".join(shown)
        case inspect.EnumType():
            return ", ".join(f"`{member.value}`" for member in kind.cls)
        case inspect.IntType() | inspect.FloatType():
            return f"{'whole number' if isinstance(kind, inspect.IntType) else 'number'}{_bounds(kind)}"
        case inspect.StrType():
            return _OF_PATTERNS.get(kind.pattern or "", "text")
        case inspect.BoolType():
            return "`true`, `false`"
        case inspect.VarTupleType():
            return f"list of {_value(kind.item_type)}" if _is_simple(kind.item_type) else "list of values"
        case inspect.DictType():
            value = _value(kind.value_type) if _is_simple(kind.value_type) else "values"
            return f"{_value(kind.key_type)} → {value}"
        case inspect.StructType():
            return "fields, below"
    return "value"


def _is_simple(kind: Any) -> bool:
    return not isinstance(kind, inspect.UnionType)


def _bounds(kind: Any) -> str:
    least = f"{kind.ge:g}" if kind.ge is not None else f"above {kind.gt:g}" if kind.gt is not None else ""
    most = f"{kind.le:g}" if kind.le is not None else f"below {kind.lt:g}" if kind.lt is not None else ""
    return f", {least} to {most}" if least and most else f", {least or most}" if least or most else ""


def _default(field: Any) -> str:
    if field.required:
        return "required"
    if field.default_factory is not msgspec.NODEFAULT:
        value: Any = field.default_factory()
    else:
        value = field.default
    if value is None or value in ((), {}) or isinstance(value, dict | list | tuple | msgspec.Struct):
        return "–"
    return f"`{msgspec.json.encode(value).decode().strip(chr(34))}`"


def _verb(verb: Verb) -> str:
    lines = [f"### `weft {verb.name}`\n", f"{verb.summary[:1].upper()}{verb.summary[1:]}.\n"]
    rows = [(f"`{name}`", meaning) for name, meaning in verb.arguments]
    for option in verb.options:
        if "--help" in option.names or option.names[-1] in ("--url", "--token", "--json"):
            continue
        values = f" ({', '.join(f'`{value}`' for value in option.values)})" if option.values else ""
        rows.append((", ".join(f"`{name}`" for name in option.names), f"{option.summary}{values}"))
    if rows:
        lines += ["| | |", "|---|---|"]
        lines += [f"| {name} | {meaning.replace('|', chr(92) + '|')} |" for name, meaning in rows]
        lines.append("")
    return "\n".join(lines)


PAGES = {"job-file.md": job_file, "python-reference.md": python_reference, "verbs.md": verbs_page}


def write() -> None:
    for name, made in PAGES.items():
        (ROOT / "docs" / name).write_text(made())


if __name__ == "__main__":
    write()
