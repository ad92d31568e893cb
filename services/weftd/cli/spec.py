"""From the options of `weft run` to a job specification, checked like every other submission."""

import argparse
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec

from weft.client.job_name import job_name
from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.spec import JobSpec
from weftd.cli.attachments import env_along, secret_files_along, secrets_along
from weftd.cli.cli_error import CliError

_OPTIONS = {  # the field of the specification → the option that the user wrote
    "name": "--name",
    "image": "--image",
    "env": "--env",
    "secrets": "--secret",
    "secret_files": "--secret-file",
    "kind": "--kind",
    "workdir": "--workdir",
    "context": "--sync",
    "priority": "--priority",
    "grace": "--grace",
    "time_limit": "--time-limit",
    "retries.max": "--retries",
    "volumes": "--volume",
    "mounts": "--mount",
    "outputs": "--output",
    "object_store": "--object-store",
    "labels": "--label",
    "array": "--array",
    "after": "--after",
    "singleton": "--singleton",
    "schedule.timezone": "--timezone",
    "schedule.overlap": "--overlap",
    "schedule.start_within": "--start-within",
    "schedule": "--schedule",
    "pool": "--pool",
    "gpu_model": "--gpu-model",
    "gpu_memory": "--gpu-memory",
    "where": "--where",
    "tolerate": "--tolerate",
    "checkpoints": "--checkpoints",
    "from_checkpoint": "--from-checkpoint",
    "progress": "--progress",
    "tuning": "--tuning",
    "resize": "--resize",
    "service.port": "--service-port",
    "service.ready": "--ready",
    "service.concurrency": "--concurrency",
    "service": "--service-port",
    "objective.latency": "--objective-latency",
    "objective.rate": "--objective-rate",
    "objective.percentile": "--objective-percentile",
    "objective": "--objective-latency",
    "roles.worker.replicas.min": "--replicas-min",
    "roles.worker.replicas.max": "--replicas-max",
    "roles.worker.replicas": "--replicas",
    "roles.worker.gpus": "--gpus",
    "roles.worker.cpus": "--cpus",
    "roles.worker.memory": "--memory",
    "roles.worker.shm": "--shm",
    "roles.worker.share.memory": "--gpu-memory",
    "roles.worker.share": "--share",
    "roles.worker": "",  # of several options together: the reason names them
    "roles": "",
}


def spec_of(
    args: argparse.Namespace, *, cwd: str, environment: Mapping[str, str], context: str | None = None
) -> JobSpec:
    """The specification from these options. Raises `CliError`, naming the option.

    `context`: the digest of the packed files that go along.
    """
    try:
        return decode_spec(msgspec.json.encode(_asked(args, cwd, environment, context)))
    except SpecError as error:
        raise CliError(error.reason, field=option_of(error.field)) from error


def option_of(field: str) -> str:
    """The option behind a field of the specification, or the field itself."""
    for known, option in _OPTIONS.items():
        if field == known or field.startswith((f"{known}[", f"{known}.")):
            return option
    return field


def _asked(args: argparse.Namespace, cwd: str, environment: Mapping[str, str], context: str | None) -> dict[str, Any]:
    command = list(args.command)
    if not command and args.image is None:
        raise CliError("the command is missing: weft run [options] -- command, or --image", status=2)
    workdir = args.workdir or (None if args.image or context else cwd)
    asked = {
        "name": args.job_name or job_name(command, args.image),
        "kind": args.kind,
        "image": args.image,
        "command": command or None,
        "workdir": workdir,
        "context": context,
        "env": env_along(args, environment, contained=args.image is not None),
        "secrets": secrets_along(args) or None,
        "secret_files": secret_files_along(args) or None,
        "roles": {"worker": _worker(args)},
        "priority": args.priority,
        "preemptible": False if args.no_preempt else None,
        "grace": args.grace,
        "time_limit": args.time_limit,
        "retries": None if args.retries is None else {"max": args.retries},
        "volumes": [volume_of(text, cwd) for text in args.volume],
        "mounts": dict(_place(text, "--mount") for text in args.mount) or None,
        "outputs": dict(_place(text, "--output") for text in args.output) or None,
        "object_store": args.object_store,
        "labels": dict(_label(text) for text in args.label),
        "checkpoints": _checkpoints(args.checkpoints),
        "from_checkpoint": args.from_checkpoint,
        "progress": None if args.progress is None else {"pattern": args.progress},
        "tuning": None if args.tuning is None else {"mode": args.tuning},
        "resize": None if args.resize is None else {"how": args.resize},
        "pool": args.pool,
        "gpu_model": models_of(args.gpu_model),
        "gpu_memory": args.gpu_memory,
        "where": args.where,
        "tolerate": args.tolerate or None,
        "service": _service(args),
        "objective": _objective(args),
        "array": args.array,
        "after": [_after(text) for text in args.after] or None,
        "singleton": True if args.singleton else None,
        "schedule": _schedule(args),
    }
    return _said(asked)


MODEL_HELP = "model of its GPUs; A100,H100: one of these; !K80: any other"


def models_of(text: str | None) -> str | list[str] | None:
    """`A100`, or `A100,H100` for any of several, the preferred one first; `!K80` for any but that one."""
    models = [] if text is None else [model.strip() for model in text.split(",")]
    return models if len(models) > 1 else text


def _after(text: str) -> dict[str, Any]:
    """`JOB`, `ok:JOB`, or `each:ok:JOB` for what is to be so of the element with the same index."""
    *words, job = text.split(":")
    each = words[:1] == ["each"]
    when = words[int(each) :]
    if len(when) > 1 or not job:
        raise CliError(f"expected JOB, ok:JOB or each:ok:JOB, not {text[:100]!r}", field="--after", status=2)
    return _said({"job": job, "when": when[0] if when else None, "element_wise": True if each else None})


def _worker(args: argparse.Namespace) -> dict[str, Any]:
    replicas = _said({"want": args.replicas, "min": args.replicas_min, "max": args.replicas_max}) or None
    return _said({"replicas": replicas, "gpus": args.gpus, "cpus": args.cpus, "memory": args.memory, "shm": args.shm})


def _service(args: argparse.Namespace) -> dict[str, Any] | None:
    """The field `service`, or None if no option of a service is given."""
    public = True if args.public else None
    asked = {"port": args.service_port, "ready": args.ready, "concurrency": args.concurrency, "public": public}
    return _said(asked) or (None if _objective(args) is None else {})


def _schedule(args: argparse.Namespace) -> dict[str, Any] | None:
    more = _said({"timezone": args.timezone, "overlap": args.overlap, "start_within": args.start_within})
    if args.schedule is None and more:
        raise CliError('give the times of a job that runs again and again, such as "0 3 * * *"', field="--schedule")
    return None if args.schedule is None else {"cron": args.schedule, **more}


def _objective(args: argparse.Namespace) -> dict[str, Any] | None:
    latency, rate, percentile = args.objective_latency, args.objective_rate, args.objective_percentile
    return _said({"latency": latency, "rate": rate, "percentile": percentile}) or None


def _checkpoints(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    return {"on_stop": True} if text == "stop" else {"every": text}


def _said(asked: dict[str, Any]) -> dict[str, Any]:
    """The given options only: the specification has defaults for the rest."""
    return {field: value for field, value in asked.items() if value is not None}


def _label(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _place(text: str, option: str) -> tuple[str, str]:
    path, given, url = text.partition("=")
    if not given:
        raise CliError(f"expected PATH=s3://BUCKET/PATH, got {text!r}", field=option)
    return path, url


def volume_of(text: str, cwd: str) -> dict[str, Any]:
    """A folder if it has a slash or begins with a dot, else the name of a volume that nodes offer."""
    source, *rest = text.split(":")
    is_name = "/" not in source and not source.startswith((".", "~"))
    if is_name and len(rest) == 1 and rest[0] in ("ro", "rw"):
        rest = ["", rest[0]]
    target, mode, *more = [*rest, "", ""][: max(2, len(rest))]
    if more or not source or mode not in ("", "ro", "rw") or not (target or (is_name and not text.endswith(":"))):
        raise CliError(f"expected NAME, NAME:TARGET, FOLDER:TARGET, each also with :ro, got {text!r}", field="--volume")
    if is_name:
        named = {"name": source, "target": target, "read_only": mode == "ro"}
        return {field: value for field, value in named.items() if value}
    here = str(PurePosixPath(cwd, source))  # an absolute source stays as it is
    return {"source": here, "target": target, "read_only": mode == "ro"}
