"""From the arguments of `weft.submit` to the specification of a job."""

import difflib
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from weft.client.errors import Refused
from weft.client.job_name import job_name
from weft.domain.decoding.spec_decoder import SPEC_BYTES_MAX
from weft.domain.decoding.yaml_reader import DocumentError, read_yaml

ROLE = "worker"
OF_THE_ROLE = ("replicas", "gpus", "share", "cpus", "memory", "shm", "egress")
_NOT_YET = ("array", "sweep", "schedule")
_OF_A_SHELL = frozenset({"|", "||", "&", "&&", ";", "<", ">", ">>"})
_ENDINGS = (".yaml", ".yml", ".json")

Given = Mapping[str, Any] | str | os.PathLike[str]


class JobFields(TypedDict, total=False):
    """The fields of a job file as keyword arguments. `gpus` to `egress` are those of its one role, `worker`.

    A number stands for `replicas: {want: N}` and `retries: {max: N}`. Sizes are text with a unit (`16GiB`), durations
    too (`30s`, `1h30m`). docs/job-file.md has each field with its default.
    """

    name: str
    kind: str
    image: str | None
    command: str | Sequence[str]
    entrypoint: Sequence[str]
    workdir: str | os.PathLike[str]
    context: str
    env: Mapping[str, str]
    secrets: Mapping[str, str]
    secret_files: Mapping[str, str]
    roles: Mapping[str, Mapping[str, Any]]
    replicas: int | Mapping[str, int]
    gpus: int
    share: Mapping[str, Any]
    cpus: float
    memory: str
    shm: str
    egress: str
    priority: int
    preemptible: bool
    grace: str
    stop_signal: str
    ulimits: Mapping[str, int | str]
    time_limit: str
    done_when: str | Sequence[str]
    retries: int | Mapping[str, Any]
    volumes: Sequence[Mapping[str, Any]]
    mounts: Mapping[str, str]
    outputs: Mapping[str, str]
    object_store: str
    labels: Mapping[str, str]
    progress: Mapping[str, str]
    objective: Mapping[str, Any]
    service: Mapping[str, Any]
    pool: str
    gpu_model: str | Sequence[str]
    gpu_memory: str
    tuning: Mapping[str, Any]
    checkpoints: Mapping[str, Any]
    from_checkpoint: str
    resize: Mapping[str, str]
    hang: Mapping[str, str]
    idle_stop: str
    preflight: bool
    pin: Mapping[str, Any]
    where: str
    tolerate: Sequence[str]
    read_only: bool
    early_stop: Mapping[str, Any]
    after: Sequence[Mapping[str, Any]]
    singleton: bool


def specification(given: Given | None, fields: JobFields, *, cwd: str) -> dict[str, Any]:
    """The specification of one job: the mapping or file that was given, with `fields` in place of its own.

    A job without a name is named by its command, and a process without a `workdir` runs in `cwd`. Raises Refused for
    what no gateway could be asked, and OSError for a file that cannot be read.
    """
    asked: dict[str, Any] = {**_mapping_of(given), **fields}
    for name in _NOT_YET:
        if name in asked:
            why = "one call submits one job; `weft submit FILE` submits arrays, sweeps and schedules"
            raise _refused(name, why, asked[name])
    for name in fields:
        if name not in JobFields.__annotations__:
            close = difflib.get_close_matches(name, JobFields.__annotations__, n=1)
            raise _refused(name, f"no such field; did you mean {close[0]}?" if close else "no such field", asked[name])
    if isinstance(asked.get("command"), str):
        asked["command"] = _words(asked["command"])
    if "retries" in fields and isinstance(asked["retries"], int):
        asked["retries"] = {"max": asked["retries"]}
    _put_into_role(asked)
    if not asked.get("name"):
        asked["name"] = job_name([str(word) for word in asked.get("command") or ()], asked.get("image"))
    if cwd and not (is_contained(asked) or asked.get("workdir") or asked.get("context")):
        asked["workdir"] = cwd
    return {name: value for name, value in asked.items() if value is not None}


def encoded(asked: Mapping[str, Any]) -> bytes:
    """The specification as JSON. Raises Refused, with the field, for a value that JSON cannot have."""
    for name, value in asked.items():
        try:
            msgspec.json.encode({name: value}, enc_hook=_plain)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise _refused(str(name), f"cannot be sent as JSON: {error}", value) from error
    return msgspec.json.encode(asked, enc_hook=_plain)


def as_given(error: Refused, asked: Mapping[str, Any], fields: JobFields) -> Refused:
    """The gateway's refusal with the field as the caller wrote it, and the value that the field has."""
    field = error.field
    value = _value_at(asked, field)
    short = field.removeprefix(f"roles.{ROLE}.")
    if short.partition(".")[0] in OF_THE_ROLE and short.partition(".")[0] in fields:
        field = short
    return Refused(
        error.status,
        field,
        error.reason,
        retry_after=error.retry_after,
        errors=error.errors,
        versions=error.versions,
        value=value,
    )


def _mapping_of(given: Given | None) -> Mapping[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return given
    path = Path(given)
    if path.suffix.lower() not in _ENDINGS:
        raise _refused("", f"expected a file that ends in {', '.join(_ENDINGS)}; weft.run takes a command", str(given))
    with path.open("rb") as file:
        body = file.read(SPEC_BYTES_MAX + 1)
    if len(body) > SPEC_BYTES_MAX:
        raise _refused("", f"{path} is larger than {SPEC_BYTES_MAX} bytes", None)
    try:
        read = msgspec.json.decode(body) if path.suffix.lower() == ".json" else read_yaml(body)
    except DocumentError as error:
        raise _refused(error.field, error.reason, None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused("", f"{path} is not JSON: {error}", None) from error
    if not isinstance(read, dict):
        raise _refused("", f"{path}: expected names and values", None)
    return read


def _put_into_role(asked: dict[str, Any]) -> None:
    """Move the fields of the one role to where a specification has them."""
    found = {name: asked.pop(name) for name in OF_THE_ROLE if name in asked}
    if not found:
        return
    if isinstance(found.get("replicas"), int):
        found["replicas"] = {"want": found["replicas"]}
    roles = asked.get("roles", {})
    if not isinstance(roles, Mapping) or set(roles) - {ROLE}:
        name = next(iter(found))
        raise _refused(name, "a job with several roles sets it in `roles`, for each of them", found[name])
    role = {name: value for name, value in found.items() if value is not None}
    asked["roles"] = {ROLE: {**roles.get(ROLE, {}), **role}}


def _words(command: str) -> list[str]:
    """The words of a command. No shell runs it, so what only a shell understands is refused."""
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        operators = _OF_A_SHELL.intersection(lexer)
        words = shlex.split(command)
    except ValueError as error:
        raise _refused("command", f"cannot be split into words: {error}", command) from error
    if operators:
        reason = f"no shell runs it, so {min(operators)} would be a word; did you mean ['sh', '-c', {command!r}]?"
        raise _refused("command", reason, command)
    return words


def is_contained(asked: Mapping[str, Any]) -> bool:
    """Return True for a job in containers."""
    roles = asked.get("roles")
    each = roles.values() if isinstance(roles, Mapping) else ()
    return bool(asked.get("image")) or any(isinstance(role, Mapping) and role.get("image") for role in each)


def _value_at(asked: object, field: str) -> object:
    """The value at a place such as `roles.worker.gpus` or `command[0]`; None if there is nothing."""
    for part in field.replace("[", ".").replace("]", "").split("."):
        if isinstance(asked, Mapping):
            asked = asked.get(part)
        elif isinstance(asked, list | tuple) and part.isdecimal() and int(part) < len(asked):
            asked = asked[int(part)]
        else:
            return None
    return asked


def _plain(value: object) -> str:
    if isinstance(value, os.PathLike):
        return os.fsdecode(os.fspath(value))
    raise TypeError(f"{type(value).__name__} is no text, number, list or mapping")


def _refused(field: str, reason: str, value: object) -> Refused:
    return Refused(0, field, reason, value=value)
