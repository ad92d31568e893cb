"""The clusters that a person uses, by name, in `~/.config/weft/config.toml`: as kubectl's contexts.

    current = "prod"

    [contexts.prod]
    url = "https://weft.example.org"
    token = "weft_…"

The file has tokens, so that nobody else may read it: one that others can read is refused.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from weft.client.errors import ClientError

LOCAL = "local"
"""The name for the cluster that `weft up` runs here: it is in no file of contexts."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
CONTEXTS_MAX = 1000
FILE_BYTES_MAX = 4 << 20
FOLDER_MODE, OTHERS = 0o700, 0o077


class Context(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The address and token of a cluster. `ca_file`: the authorities to believe, if not those of the system."""

    url: str
    token: str = ""
    ca_file: str = ""


class Contexts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All contexts of a person, and the name of the one that is used where none is named; empty: `local`."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def named(self, name: str) -> Context | None:
        """The context of this name; None for `local`. Raises ClientError."""
        if name == LOCAL:
            return None
        if name not in self.contexts:
            known = ", ".join([LOCAL, *sorted(self.contexts)])
            raise ClientError(f"there is no context {name[:63]}; there is {known}")
        return self.contexts[name]

    def at(self, url: str) -> Context | None:
        """The context of this address, the current one before others."""
        names = [self.current, *sorted(self.contexts)]
        found = (self.contexts[name] for name in names if name in self.contexts)
        return next((one for one in found if one.url.rstrip("/") == url.rstrip("/")), None)

    def with_context(self, name: str, context: Context) -> "Contexts":
        """With the context under this name, as the current one. Raises ClientError."""
        if name == LOCAL or not NAME.fullmatch(name):
            raise ClientError(
                f"{name[:63]} is no name for a context: letters, digits, '.', '_' and '-', at most 63, and not {LOCAL}"
            )
        if len(self.contexts) >= CONTEXTS_MAX and name not in self.contexts:
            raise ClientError(f"there are {CONTEXTS_MAX} contexts already")
        return structs.replace(self, current=name, contexts={**self.contexts, name: context})

    def without(self, name: str) -> "Contexts":
        kept = {each: context for each, context in self.contexts.items() if each != name}
        return structs.replace(self, current="" if self.current == name else self.current, contexts=kept)


def config_file(environment: Mapping[str, str]) -> Path:
    """WEFT_CONFIG, else the file in the person's folder for configuration."""
    if chosen := environment.get("WEFT_CONFIG"):
        return Path(chosen)
    folder = environment.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "weft" / "config.toml"


def read_contexts(environment: Mapping[str, str]) -> Contexts:
    """The person's contexts; none without a file. Raises ClientError."""
    path = config_file(environment)
    try:
        with path.open("rb") as file:
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & OTHERS:
                raise ClientError(f"others can read {path}, which has tokens: `chmod 600 {path}`")
            text = file.read(FILE_BYTES_MAX)
        import tomllib  # slow to import, and many have no such file

        return msgspec.convert(tomllib.loads(text.decode()), Contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ClientError(f"{path}: {error}") from error


def write_contexts(environment: Mapping[str, str], contexts: Contexts) -> Path:
    """Write the file whole, in place of the one before; only the person may read it. Raises ClientError."""
    import tempfile  # slow to import, and only a sign-in writes

    path = config_file(environment)
    try:
        path = path.resolve()  # a link to a file elsewhere stays one
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(_toml(contexts))
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ClientError(f"cannot write {path}: {error.strerror}") from error
    return path


def _toml(contexts: Contexts) -> str:
    lines = [f"current = {_text(contexts.current)}"] if contexts.current else []
    for name, context in sorted(contexts.contexts.items()):
        lines += ["", f"[contexts.{_text(name)}]"]
        lines += [f"{field} = {_text(value)}" for field, value in structs.asdict(context).items() if value]
    return "\n".join([*lines, ""])


def _text(value: str) -> str:
    """A basic string of TOML: JSON's, but for one control character that JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
