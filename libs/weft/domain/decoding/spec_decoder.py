"""Reads a job specification from JSON or YAML, and refuses what breaks a rule: the one validation there is.

Every way in (HTTP, NATS, the command line) decodes with `decode_spec`, so all accept and refuse the same.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec

from weft.domain.arrays import INDICES_PATTERN, IndicesError, indices_of
from weft.domain.decoding.doubled_names import doubled_name
from weft.domain.decoding.mistakes import Mistake, mistakes_of
from weft.domain.decoding.yaml_reader import DocumentError, Value, read_yaml
from weft.domain.dependencies import NAMED_PATTERN, SOURCE_PATTERN
from weft.domain.idling import LEAST_SECONDS
from weft.domain.labels.where import WhereError, parsed
from weft.domain.object_store.urls import (
    MOUNT_VARIABLE,
    OBJECT_URL_PATTERN,
    OUTPUT_VARIABLE,
    fault_of_url,
    is_within,
    plain_path,
    variable_of,
)
from weft.domain.quantity import duration_seconds, size_bytes
from weft.domain.schedules import ZONE_PATTERN
from weft.domain.schedules.cron import CronError, times_of, zone_of
from weft.domain.spec import (
    ANY_MODEL,
    ENV_NAME_PATTERN,
    IDLE_NEVER,
    IMAGE_PATTERN,
    LABEL_NAME_PATTERN,
    NOT_MODEL,
    ORIGIN_PATTERN,
    PATH_PATTERN,
    REPLICAS_MAX,
    SECRETS_MAX,
    TOKEN_PATTERN,
    TOLERATED_PATTERN,
    HangAct,
    JobSpec,
    Kind,
    Objective,
    ResizeHow,
    ServedModel,
    is_of_the_container,
)
from weft.domain.sweeps import SWEEP_NAME_PATTERN, SweepError, check_sweep
from weft.domain.ulimits import PATTERN_WORDS as ULIMIT_WORDS

SPEC_BYTES_MAX = 1 << 20
GPU_MEMORY_BYTES_MAX = 1 << 40
DURATION_SECONDS_MAX = 366 * 86400
SERVICE_SECONDS = {"timeout": (0.001, 3600.0), "start": (1.0, 86400.0), "drain": (0.0, 3600.0)}
"""The least and the most of each duration of a service."""
START_WITHIN_SECONDS_MIN = 60.0
SETS_MAX = 32
RANGES_MAX = 32
GROUPS_MAX = 64
_WIDE_RANGE = re.compile(r"-(?:[^\x00-\xff]|\\[uUN])")


class SpecError(Exception):
    """The specification is refused: `field` and `reason` of the first mistake; `mistakes` has all of them."""

    def __init__(self, field: str, reason: str, *, mistakes: Sequence[Mistake] = ()) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason
        self.mistakes = tuple(mistakes) or (Mistake(field, reason),)


def decode_spec(body: bytes, *, content: str = "json") -> JobSpec:
    """One specification from JSON or YAML bytes. Raises `SpecError`, which names the field and the reason."""
    if len(body) > SPEC_BYTES_MAX:
        raise SpecError("", f"the specification is {len(body)} bytes; at most {SPEC_BYTES_MAX} are read")
    try:
        if content == "yaml":
            spec = msgspec.convert(_yaml(body), JobSpec)
        else:
            spec = msgspec.json.decode(body, type=JobSpec)
            if (doubled := doubled_name(body)) is not None:
                raise SpecError(doubled, "is given twice")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _spec_error(error, body, content) from error
    except RecursionError as error:
        raise SpecError("", "nested too deeply") from error
    _check(spec)
    _check_text(spec)
    return spec


def _check(spec: JobSpec) -> None:
    """The rules that no field's type can express. Raises SpecError with the first mistake of each group."""
    mistakes: list[Mistake] = []
    for check in (
        _check_times,
        _check_hang,
        _check_idle_stop,
        _check_signals,
        _check_done_when,
        _check_gpus,
        _check_objective,
        _check_service,
        _check_array,
        _check_schedule,
        _check_sizes,
        _check_progress,
        _check_secrets,
        _check_context,
        _check_volumes,
        _check_where,
        _check_mounts,
    ):
        try:
            check(spec)
        except SpecError as error:
            mistakes += error.mistakes
    if mistakes:
        raise SpecError(*mistakes[0], mistakes=mistakes)


def _check_times(spec: JobSpec) -> None:
    for field, text in _durations(spec):
        if duration_seconds(text) > DURATION_SECONDS_MAX:
            raise SpecError(field, f"{text} is longer than {DURATION_SECONDS_MAX // 86400} days")
    if spec.grace_seconds > 3600:
        raise SpecError("grace", f"{spec.grace} is longer than 1h")
    if spec.time_limit_seconds == 0:
        raise SpecError("time_limit", "must be greater than 0")


def _check_hang(spec: JobSpec) -> None:
    if spec.hang.do is HangAct.REQUEUE and not spec.retries.max:
        raise SpecError("hang.do", "requeue counts as a retry, and `retries.max` is 0")


def _check_idle_stop(spec: JobSpec) -> None:
    if spec.idle_stop is None or spec.idle_stop == IDLE_NEVER:
        return
    if spec.kind is Kind.INFERENCE:
        raise SpecError("idle_stop", f"is not for kind {Kind.INFERENCE}, which waits for requests")
    if duration_seconds(spec.idle_stop) < LEAST_SECONDS:
        raise SpecError("idle_stop", f"must be at least {LEAST_SECONDS:g}s, or `{IDLE_NEVER}`, not {spec.idle_stop}")


def _check_signals(spec: JobSpec) -> None:
    if spec.stop_signal is not None and spec.stop_signal == str(spec.resize.signal):
        why = "is the signal of `resize`, too: the program could not distinguish a stop from a resize"
        raise SpecError("stop_signal", why)


def _check_done_when(spec: JobSpec) -> None:
    if spec.done_when is None:
        return
    if spec.service is not None:
        raise SpecError("done_when", "is only for jobs that end; a job with `service` does not end by itself")
    named = spec.done_roles
    for role in named:
        if role not in spec.roles:
            raise SpecError("done_when", f"{role} is no role of the job; it has {', '.join(spec.roles)}")
        if named.count(role) > 1:
            raise SpecError("done_when", f"{role} is named twice")
    if len(named) == len(spec.roles):
        raise SpecError("done_when", "names every role, so no rank would be stopped: leave it out, or name fewer")


def _check_gpus(spec: JobSpec) -> None:
    models = spec.gpu_models_written
    if doubled := next((model for at, model in enumerate(models) if model in models[:at]), None):
        raise SpecError("gpu_model", f"{doubled} is named twice")
    if ANY_MODEL in models:
        raise SpecError("gpu_model", f"{ANY_MODEL} stands for every model: leave the others out, or {ANY_MODEL}")
    if NOT_MODEL in models or f"{NOT_MODEL}{ANY_MODEL}" in models:
        raise SpecError("gpu_model", f"{NOT_MODEL} stands before the name of one model, such as {NOT_MODEL}K80")
    if spec.gpu_models and spec.gpu_models_excluded:
        named, excluded = (" and ".join(of) for of in (spec.gpu_models, spec.gpu_models_excluded))
        why = f"names {named} and excludes {excluded}: name models or exclude models, not both"
        raise SpecError("gpu_model", why)
    if spec.gpu_memory is not None and not 0 < spec.gpu_memory_bytes <= GPU_MEMORY_BYTES_MAX:
        raise SpecError("gpu_memory", f"must be above 0 and at most 1TiB, not {spec.gpu_memory}")


def _check_objective(spec: JobSpec) -> None:
    if spec.objective is not None and spec.kind is not Kind.INFERENCE:
        raise SpecError("objective", f"is for kind inference, this is {spec.kind}")
    if spec.objective is None:
        return
    for field, text in _times_of(spec.objective):
        if duration_seconds(text) == 0:
            raise SpecError(field, "no request is answered in no time")
    if spec.objective.ttft is not None and (spec.service is None or spec.service.model is None):
        raise SpecError("objective.ttft", "is read from the answers of a model: name it in service.model")


def _check_sizes(spec: JobSpec) -> None:
    if sum(role.replicas.want for role in spec.roles.values()) > REPLICAS_MAX:
        raise SpecError("roles", f"ask for more than {REPLICAS_MAX} replicas together")
    if sum(role.replicas.most for role in spec.roles.values()) > REPLICAS_MAX:
        raise SpecError("roles", f"may grow beyond {REPLICAS_MAX} replicas together")
    if spec.resize.signal is not None and spec.resize.how is not ResizeHow.LIVE:
        raise SpecError("resize.signal", "is for jobs that resize live: set resize.how to live")
    for name, role in spec.roles.items():
        if not (spec.image or role.image or spec.command or role.command):
            raise SpecError("command", f"role {name} has neither an image nor a command")
        if (least := spec.tuning.memory_min) is not None and size_bytes(least) > role.memory_bytes:
            raise SpecError("tuning.memory_min", f"{least} is more than the {role.memory} that role {name} asks for")
        if spec.tuning.egress_total is not None and role.egress is None:
            raise SpecError("tuning.egress_total", f"role {name} has no `egress`, which `egress_total` needs")


def _check_progress(spec: JobSpec) -> None:
    if spec.progress is not None:
        try:
            check_pattern(spec.progress.pattern)
        except ValueError as error:
            raise SpecError("progress.pattern", str(error)) from error


def _check_secrets(spec: JobSpec) -> None:
    for field, named in (("secrets", spec.secrets), ("secret_files", spec.secret_files)):
        for name in named:
            if name in spec.env or any(name in role.env for role in spec.roles.values()):
                raise SpecError(f"{field}.{name}", "is in `env`, too: remove one of the two")
            if field == "secret_files" and name in spec.secrets:
                raise SpecError(f"{field}.{name}", "is in `secrets`, too: remove one of the two")
    if len(spec.secrets) + len(spec.secret_files) > SECRETS_MAX:
        raise SpecError("secret_files", f"more than {SECRETS_MAX} together with `secrets`")


def _check_context(spec: JobSpec) -> None:
    if spec.context is None or spec.workdir is None:
        return
    if spec.image is None and all(role.image is None for role in spec.roles.values()):
        raise SpecError(
            "workdir", "is only for containers if there is a `context`: a process runs in the folder of its files"
        )
    if ".." in spec.workdir.split("/") or is_of_the_container(spec.workdir):
        raise SpecError("workdir", f"{spec.workdir} is the container's own: the files of the `context` cannot be there")
    if any(volume.inside == spec.workdir for volume in spec.volumes):
        raise SpecError("workdir", f"{spec.workdir} is where a volume is: the files of the `context` cannot be there")


def _check_volumes(spec: JobSpec) -> None:
    if not spec.named_volumes:
        return
    contained = spec.image is not None or any(role.image is not None for role in spec.roles.values())
    names: set[str] = set()
    places: dict[str, str] = {}
    for number, volume in enumerate(spec.volumes):
        field = f"volumes[{number}]"
        if volume.name in names:
            raise SpecError(f"{field}.name", f"{volume.name} is named twice")
        if volume.name and volume.target and not contained:
            why = f"is only for containers: a process finds the path of the volume in {volume.variable}"
            raise SpecError(f"{field}.target", why)
        place = "/" + "/".join(part for part in volume.inside.split("/") if part not in ("", "."))
        if (other := places.get(place)) is not None and (volume.name or other):
            raise SpecError(f"{field}.target", f"{place} is the target of another volume")
        places[place] = places.get(place) or volume.name
        names |= {volume.name} - {""}


def _check_where(spec: JobSpec) -> None:
    if spec.where is not None:
        try:
            parsed(spec.where)
        except WhereError as error:
            raise SpecError("where", str(error)) from error


def _check_mounts(spec: JobSpec) -> None:
    if (spec.mounts or spec.outputs) and spec.object_store is None:
        raise SpecError("object_store", "expected the name of the secret with the keys of the object store")
    if spec.object_store is not None and not (spec.mounts or spec.outputs):
        raise SpecError("object_store", "needs `mounts` or `outputs`, and the job has neither")
    taken = [plain_path(volume.inside) for volume in spec.volumes]
    if spec.context is not None and spec.workdir is not None:
        taken.append(plain_path(spec.workdir))
    variables: dict[str, str] = {}
    mounts = [("mounts", MOUNT_VARIABLE, path, url) for path, url in spec.mounts.items()]
    outputs = [("outputs", OUTPUT_VARIABLE, path, url) for path, url in spec.outputs.items()]
    for name, prefix, path, url in (*mounts, *outputs):
        field, plain = f"{name}.{path}", plain_path(path)
        if ".." in path.split("/"):
            raise SpecError(field, f"{path} must not contain '..'")
        if is_of_the_container(path):
            raise SpecError(field, f"{path} is the container's own")
        if other := next((other for other in taken if is_within(plain, other) or is_within(other, plain)), ""):
            raise SpecError(field, f"one of {path} and {other} lies within the other")
        variable = variable_of(prefix, path)
        if variable in variables:
            raise SpecError(field, f"{path} and {variables[variable]} would both be in the variable {variable}")
        if fault := fault_of_url(url):
            raise SpecError(field, fault)
        variables[variable] = path
        taken.append(plain)


def _check_array(spec: JobSpec) -> None:
    if spec.element is not None:
        raise SpecError("element", "is set by Weft: use `array` for many jobs of one specification")
    if spec.is_array and spec.service is not None:
        raise SpecError("service", "a job that serves requests is no array: it has replicas")
    try:
        indices, _ = ((), None) if spec.array is None else indices_of(spec.array)
        if spec.array is not None and bool(indices) == (spec.sweep is not None):
            wrong = "with a sweep, expected only %N, such as %8" if indices else "names no index"
            raise IndicesError(wrong)
    except IndicesError as error:
        raise SpecError("array", str(error)) from error
    if spec.sample is not None and spec.sweep is None:
        raise SpecError("sample", "needs a `sweep`, and the job has none")
    if spec.early_stop is not None and not spec.is_array:
        raise SpecError("early_stop", "needs an `array` or a `sweep`, and the job has neither")
    try:
        check_sweep(spec.sweep or {}, spec.sample)
    except SweepError as error:
        raise SpecError(error.field, error.reason) from error
    for number, one in enumerate(spec.after):
        if one.element_wise and not spec.is_array:
            raise SpecError(f"after[{number}].element_wise", "needs an `array`, and the job has none")


def _check_schedule(spec: JobSpec) -> None:
    if spec.scheduled is not None:
        raise SpecError("scheduled", "is set by Weft: say `schedule` to have a job run again and again")
    if (schedule := spec.recurs) is None:
        return
    if spec.is_array:
        raise SpecError("schedule", "is for single jobs: an array or a sweep is submitted each time")
    if spec.service is not None:
        raise SpecError("schedule", "is for jobs that end: one that serves requests runs all the time")
    try:
        times_of(schedule.cron)
    except CronError as error:
        raise SpecError("schedule" if isinstance(spec.schedule, str) else "schedule.cron", str(error)) from error
    try:
        zone_of(schedule.timezone)
    except CronError as error:
        raise SpecError("schedule.timezone", str(error)) from error
    if schedule.start_within_seconds < START_WITHIN_SECONDS_MIN:
        least = f"must be at least {START_WITHIN_SECONDS_MIN:g}s, as times have minutes"
        raise SpecError("schedule.start_within", f"{least}, not {schedule.start_within}")


def _check_service(spec: JobSpec) -> None:
    for name, role in spec.roles.items():
        if not spec.is_service and role.replicas.least < 1:
            field = "want" if role.replicas.want < 1 else "min"
            why = "must be at least 1: only a service (kind inference with `service`) may have no replica"
            raise SpecError(f"roles.{name}.replicas.{field}", why)
        if role.replicas.most < 1:
            raise SpecError(f"roles.{name}.replicas.max", "at least one replica")
    service = spec.service
    if service is None:
        return
    if spec.kind not in (Kind.INFERENCE, Kind.NOTEBOOK):
        raise SpecError("service", f"is for kinds {Kind.INFERENCE} and {Kind.NOTEBOOK}, this is {spec.kind}")
    if len(spec.roles) > 1:
        raise SpecError("roles", "a job that serves requests has one role")
    if spec.kind is Kind.NOTEBOOK and sum(role.replicas.most for role in spec.roles.values()) > 1:
        raise SpecError("roles", "a notebook that serves requests has one replica")
    if spec.is_service and spec.pin is not None and spec.pin.gpu is not None:
        raise SpecError("pin.gpu", "a service can be pinned to a node, but not to a GPU: its replicas come and go")
    if spec.is_service and spec.resize.how not in (None, ResizeHow.LIVE):
        raise SpecError("resize.how", f"must be {ResizeHow.LIVE} for a service: its replicas come and go one by one")
    for name, (least, most) in SERVICE_SECONDS.items():
        if not least <= duration_seconds(getattr(service, name)) <= most:
            raise SpecError(f"service.{name}", f"{getattr(service, name)} is outside {least:g}s to {most:g}s")
    if service.model is not None:
        _check_model(spec, service.model)


def _check_model(spec: JobSpec, model: ServedModel) -> None:
    if not spec.is_service:
        raise SpecError("service.model", f"is for kind {Kind.INFERENCE}, this is {spec.kind}")
    named: set[str] = {model.name}
    for number, name in enumerate(model.aliases):
        if name in named:
            raise SpecError(f"service.model.aliases[{number}]", f"{name} is named twice")
        named.add(name)
    for name in model.adapters:
        if name in named:
            raise SpecError(f"service.model.adapters.{name}", "is named twice")


def _durations(spec: JobSpec) -> Iterable[tuple[str, str]]:
    yield "grace", spec.grace
    yield "hang.after", spec.hang.after
    if spec.idle_stop is not None and spec.idle_stop != IDLE_NEVER:
        yield "idle_stop", spec.idle_stop
    yield "retries.backoff", spec.retries.backoff
    yield "retries.backoff_max", spec.retries.backoff_max
    if spec.checkpoints is not None and spec.checkpoints.every is not None:
        yield "checkpoints.every", spec.checkpoints.every
    if spec.time_limit is not None:
        yield "time_limit", spec.time_limit
    if spec.objective is not None:
        yield from _times_of(spec.objective)
    if spec.recurs is not None:
        yield "schedule.start_within", spec.recurs.start_within


def _times_of(objective: Objective) -> Iterable[tuple[str, str]]:
    """Its durations by their fields, as far as the user wrote them."""
    if objective.latency != objective.ttft:
        yield "objective.latency", objective.latency
    if objective.ttft is not None:
        yield "objective.ttft", objective.ttft
    if objective.tpot is not None:
        yield "objective.tpot", objective.tpot


def _check_text(spec: JobSpec) -> None:
    """Refuse text that no store can hold, though YAML, and partly JSON, can write it."""
    try:
        encoded = msgspec.json.encode(spec)
    except UnicodeEncodeError:
        raise SpecError("", "has text that is not Unicode (half of a surrogate pair)") from None
    if b"\\u0000" in encoded and (field := _field_with_nul(msgspec.to_builtins(spec), "")):
        raise SpecError(field, "has a NUL character")


def _field_with_nul(value: object, path: str) -> str:
    if isinstance(value, str):
        return path if "\0" in value else ""
    items: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        if any("\0" in name for name in value):
            return path
        items = ((f"{path}.{name}".removeprefix("."), part) for name, part in value.items())
    elif isinstance(value, list | tuple):
        items = ((f"{path}[{number}]", part) for number, part in enumerate(value))
    return next((found for name, part in items if (found := _field_with_nul(part, name))), "")


def _spec_error(error: Exception, body: bytes, content: str) -> SpecError:
    """All mistakes, found by a second look at the document, part by part."""
    if not isinstance(error, msgspec.ValidationError):
        return SpecError("", str(error))
    try:
        document: object = _yaml(body) if content == "yaml" else msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as worse:  # no JSON, further on than the first decoder read
        return SpecError("", str(worse))
    except RecursionError:
        field = str(error).partition(" - at ")[2].strip("`").removeprefix("$").removeprefix(".")
        return SpecError(field, "nested too deeply")
    mistakes = mistakes_of(document, JobSpec, PATTERN_WORDS)
    if not mistakes:
        return SpecError("", str(error))
    return SpecError(*mistakes[0], mistakes=mistakes)


def _yaml(body: bytes) -> Value:
    try:
        return read_yaml(body)
    except DocumentError as error:
        raise SpecError(error.field, error.reason) from error


PATTERN_WORDS = {
    **ULIMIT_WORDS,
    TOKEN_PATTERN: "expected lower-case letters, digits and '-', at most 63, no dots",
    PATH_PATTERN: "expected an absolute path, such as /home/ada/mnist: the node does not know your folder",
    OBJECT_URL_PATTERN: "expected s3://BUCKET/PATH, with a bucket of 3 to 63 lower-case letters, digits, '-' and '.'",
    IMAGE_PATTERN: "expected a container image, such as ghcr.io/ada/mnist:1.0",
    ORIGIN_PATTERN: "expected '*', or an origin in small letters without a path, such as https://app.example.org",
    ENV_NAME_PATTERN: "expected a name of letters, digits and '_' that begins with no digit",
    INDICES_PATTERN: "expected indices such as 0-9, 1,3,5 or 0-99:2, and %N for how many at once: 0-99%8",
    NAMED_PATTERN: "expected the id or the name of a job or an array, or an element such as train_3",
    SOURCE_PATTERN: "expected the id or the name of a job, such as train, or with a step: train:500",
    SWEEP_NAME_PATTERN: "expected a name of letters, digits and '_' that begins with a letter, at most 63",
    TOLERATED_PATTERN: "expected a taint as NAME or NAME=VALUE, or '*' for all",
    ZONE_PATTERN: "expected a time zone such as Europe/Berlin, or UTC",
    LABEL_NAME_PATTERN: "expected letters, digits and '.', '_', '/', '-' between them, at most 63",
}


def check_pattern(pattern: str) -> None:
    """Raises ValueError, in a person's words, unless it is a pattern with a named group that is cheap to compile."""
    _check_cost(pattern)
    try:
        groups = re.compile(pattern).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from error
    if not groups:
        raise ValueError("needs a named group, such as (?P<step>[0-9]+)")


def _check_cost(pattern: str) -> None:
    """Count by the text alone: whatever looks like a set, a range or a group counts as one."""
    counted = {"sets": (pattern.count("["), SETS_MAX), "groups": (pattern.count("("), GROUPS_MAX)}
    if "[" in pattern:
        counted["ranges"] = (pattern.count("-"), RANGES_MAX)
        if _WIDE_RANGE.search(pattern):
            raise ValueError("a range in a set ends at \\xff at the latest; \\w and . match all letters")
    for what, (count, most) in counted.items():
        if count > most:
            raise ValueError(f"has {count} {what}, at most {most} are taken: it would be slow to compile")
