"""The public interface of `weft` as text; `python -m tests.support.public` records it after a change that is meant."""

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import weft

RECORDED = Path(__file__).parents[1] / "architecture/public.txt"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # the address of a function that is a default
_UNPACKED = re.compile(r"\*\*fields: (?:\*<class '|typing\.Unpack\[)([\w.]+)(?:'>|\])")  # by version of Python


def interface() -> str:
    """Every public name; each class with its public bases and the signatures of its public methods and properties."""
    return "\n".join(_names_of(weft)) + "\n"


def _names_of(module: ModuleType, within: str = "") -> list[str]:
    lines: list[str] = []
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if inspect.isclass(value):
            lines += _class(f"{within}{name}", value)
        elif inspect.ismodule(value):
            lines += _names_of(value, f"{name}.")
        elif inspect.isfunction(value):
            lines.append(f"{within}{name}{signature(value)}")
        else:
            lines.append(f"{within}{name}: {type(value).__name__}")
    return lines


def _class(name: str, kind: type) -> list[str]:
    bases = "".join(f", a {base.__name__}" for base in kind.__bases__ if base.__name__ in weft.__all__)
    made = "" if issubclass(kind, Exception) and not is_ours(kind, "__init__") else signature(kind)
    lines = [f"class {name}{made}{bases}"]
    for member, value in sorted(inspect.getmembers(kind)):
        if not member.startswith("_") and is_ours(kind, member):
            lines.append(f"{name}.{member}{signature(value)}")
    return lines


def is_ours(kind: type, member: str) -> bool:
    """Return True if a class of this project defines the member, not Python."""
    return any(member in vars(base) and base.__module__.startswith("weft") for base in kind.__mro__)


def signature(value: Any) -> str:
    """The signature as text, the same for all versions of Python."""
    if isinstance(value, property):
        return f": {inspect.signature(value.fget).return_annotation}" if value.fget else ""
    if not callable(value):
        return ""
    try:
        known = inspect.signature(value, eval_str=True)
    except NameError:  # a type that is imported when it is needed
        known = inspect.signature(value)
    return _UNPACKED.sub(r"**fields: \1", _ADDRESS.sub("", f"{known}"))


if __name__ == "__main__":
    RECORDED.write_text(interface())
