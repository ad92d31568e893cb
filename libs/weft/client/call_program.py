"""The program of a job that calls a function. It goes along with the job as `weft_call.py`, and needs Python's standard
library alone.

Its argument is a JSON object: `module` and `name` of the function, the `python` that sent it (major and minor version),
`pickled`, and the `calls`, or the name of the `file` with them beside this program. A call is `[arguments, named
arguments]`. An element of an array does those from WEFT_ARRAY_INDEX * `chunk` on; an element of a sweep has the
arguments that `sweep` names from its variables. Each call leaves one line in `$WEFT_RESULTS/weft-calls`, as soon as it
has ended: its `n`, and its `value` or its `error`.
"""

import base64
import functools
import importlib
import json
import os
import pickle
import sys
import traceback
from typing import Any, get_type_hints

FILE = "weft-calls"
_PLAIN = frozenset({bool, int, float, str, type(None), None})
"""Types that JSON has as they are: for these alone msgspec is not imported."""

RESULT_BYTES_MAX = 16 << 20
ERROR_CHARACTERS_MAX = 64 << 10


class UnfitError(Exception):
    """The call cannot be made, or its result cannot be sent, as a sentence for its caller."""


def main(told: dict[str, Any]) -> int:
    here = os.path.dirname(os.path.abspath(__file__))
    results = os.path.join(os.environ["WEFT_RESULTS"], FILE)
    rank = int(os.environ.get("WEFT_RANK") or 0)
    failed = False
    with open(results if rank == 0 else os.devnull, "w", encoding="utf-8") as file:
        first, calls = 0, list[Any]()
        try:
            _check_python(told["python"])
            calls = _calls(told, here)
            if told["chunk"]:
                first = int(os.environ["WEFT_ARRAY_INDEX"]) * told["chunk"]
                calls = calls[first : first + told["chunk"]]
            function = _function(told, here)
            calls = _with_row(function, told, calls)
        except UnfitError as error:
            sys.stderr.write(f"{error}\n")
            file.write(json.dumps({"n": -1, "error": {"type": "", "message": str(error), "traceback": ""}}) + "\n")
            return 1
        for n, call in enumerate(calls, first):
            said = {"n": n, **_called(function, call, pickled=told["pickled"])}
            failed |= "error" in said
            file.write(json.dumps(said) + "\n")
            file.flush()
    return int(failed)


def _check_python(wanted: list[int]) -> None:
    has = list(sys.version_info[:2])
    if has != wanted:
        sent, here = (".".join(map(str, version)) for version in (wanted, has))
        raise UnfitError(
            f"the function was sent by Python {sent}, and the job runs Python {here}: use the same in both"
        )


def _calls(told: dict[str, Any], here: str) -> Any:
    if told["file"]:
        with open(os.path.join(here, told["file"]), "rb") as file:
            data = file.read()
    else:
        data = base64.b64decode(told["calls"])
    return pickle.loads(data) if told["pickled"] else json.loads(data)


def _function(told: dict[str, Any], here: str) -> Any:
    sys.path.insert(0, here)
    where = f"{told['module']}:{told['name']}"
    try:
        found = functools.reduce(getattr, told["name"].split("."), importlib.import_module(told["module"]))
    except Exception as error:
        raise UnfitError(f"{where} cannot be imported in the job: {type(error).__name__}: {error}") from error
    return getattr(found, "__wrapped__", found)


def _with_row(function: Any, told: dict[str, Any], calls: Any) -> Any:
    """The call with the values of the element of a sweep, which its variables have as text."""
    if not told["sweep"]:
        return calls
    ((positional, named),) = calls
    row = {name: os.environ[f"WEFT_SWEEP_{name.upper()}"] for name in told["sweep"]}
    kinds = getattr(function, "__annotations__", {})
    return [(positional, {**named, **{name: _value_of(text, kinds.get(name)) for name, text in row.items()}})]


def _value_of(text: str, kind: Any) -> Any:
    """A value of a sweep by the annotation of its argument; else as JSON has it, or the text."""
    if kind in (str, "str"):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return float(value) if kind in (float, "float") and isinstance(value, int) else value


def _called(function: Any, call: Any, *, pickled: bool) -> dict[str, Any]:
    try:
        positional, named = call if pickled else by_type(function, *call)
        value = function(*positional, **named)
    except Exception as error:
        text = traceback.format_exc()[-ERROR_CHARACTERS_MAX:]
        sys.stderr.write(text)
        return {"error": {"type": type(error).__name__, "message": str(error)[:1000], "traceback": text}}
    try:
        encoded = base64.b64encode(pickle.dumps(value)).decode() if pickled else json.dumps(plain(value))
        if len(encoded) > RESULT_BYTES_MAX:
            raise UnfitError(f"it has {len(encoded)} bytes, {RESULT_BYTES_MAX} at most are sent: write it to a file")
    except Exception as error:
        message = f"the result, a {type(value).__name__}, cannot be sent: {error}"
        sys.stderr.write(f"{message}\n")
        return {"error": {"type": type(error).__name__, "message": message, "traceback": ""}}
    return {"value": encoded}


def by_type(function: Any, positional: list[Any], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as the function's annotations have them, where msgspec is there; else as JSON has them."""
    if all(kind in _PLAIN for kind in getattr(function, "__annotations__", {}).values()):
        return positional, named
    try:
        import msgspec

        hints = get_type_hints(function, include_extras=True)
    except (ImportError, NameError, TypeError, AttributeError):  # an annotation may name what is not there
        return positional, named
    names = function.__code__.co_varnames[: function.__code__.co_argcount] if hasattr(function, "__code__") else ()
    typed = [
        msgspec.convert(value, hints[name]) if name in hints else value
        for name, value in zip((*names, *[""] * len(positional)), positional, strict=False)
    ]
    return typed, {
        name: msgspec.convert(value, hints[name]) if name in hints else value for name, value in named.items()
    }


def plain(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    try:
        import msgspec
    except ImportError:
        return value
    return msgspec.to_builtins(value)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
