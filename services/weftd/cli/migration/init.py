"""`weft init`: a job file to begin with. Lines that begin with `#` and a field are choices: take away the `#`."""

import argparse
import os
import re
from pathlib import Path

from weft.domain.spec import TOKEN_PATTERN, Kind
from weftd.cli import page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.migration.written import quoted

_HEAD = """\
# A job of Weft: `weft submit {file}`. Every field: docs/job-file.md
name: {name}
kind: {kind}
"""
_WHAT = """
# The command: a list of words, run without a shell. It gets the PATH of the node, not that of your shell.
command: {command}
workdir: {workdir}
#image: python:3.12-slim      # in a container of this image, where the nodes have Docker
#env: {{DATA: /data, SEED: "1"}}  # numbers in quotes: a variable is text
#volumes: [{{name: datasets, target: /data, read_only: true}}]  # `weft nodes` lists them
#labels: {{team: vision}}       # to select by: `weft ps --label team=vision`
"""
_NEEDS = """
# Resources of each replica, by role; all replicas start together or not at all.
roles:
  worker:
    replicas: {replicas}
    gpus: 1
    #share: {{request: 0.5, memory: 8GiB}}  # in place of gpus: a part of one
    cpus: 2
    memory: 4GiB
    #shm: 1GiB                 # of /dev/shm, part of memory; default: half of it
#gpu_model: NVIDIA H100       # only on GPUs of this model (`weft gpus` lists them)
"""
_HOW = """
# Scheduling.
#priority: 5                  # -1000 to 1000, higher goes first
#preemptible: false           # never stopped for another job, if your tenant may have that
grace: 30s                    # between SIGTERM and SIGKILL, to write a checkpoint to $WEFT_CHECKPOINT_DIR
#time_limit: 12h              # it is stopped then; a limit lets short jobs start sooner
retries: {max: 3, backoff: 10s}  # tried again when it fails
"""
_TRAINS = """\
#checkpoints: {every: 10m}    # it saves its work this often; then it waits less, and moves to faster GPUs
#progress: {pattern: 'step (?P<step>[0-9]+)/(?P<steps>[0-9]+) loss (?P<loss>[0-9.]+)'}  # matches lines of its output
#tuning: {mode: on}           # CPU, memory and network follow what holds it back: docs/tuning.md
#resize: {how: live}          # ranks join and leave while it runs: docs/elastic.md
"""
_SERVES = """\
service: {ready: /healthz, concurrency: 8}  # it listens on $WEFT_PORT, and answers this path once it takes requests
#objective: {latency: 200ms, rate: 50}  # its size follows its load so that this holds: docs/serving.md
"""
_COMMANDS = {
    Kind.TRAINING: "[python3, train.py, --epochs, '10']",
    Kind.BATCH: "[python3, evaluate.py]",
    Kind.INFERENCE: "[python3, serve.py]",
    Kind.NOTEBOOK: '[sh, -c, "exec jupyter lab --ip 0.0.0.0 --port $WEFT_PORT"]',
}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("init", help="write a job file to begin with", description=__doc__)
    parser.add_argument(
        "file", nargs="?", default="job.yaml", metavar="FILE", help="file to write (default: job.yaml); `-` is stdout"
    )
    parser.add_argument(
        "--kind",
        choices=[kind.value for kind in Kind],
        default="training",
        metavar="KIND",
        help="kind of the job (default: training)",
    )
    parser.add_argument("--name", metavar="NAME", help="name of the job (default: that of this folder)")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.set_defaults(func=init)


async def init(args: argparse.Namespace) -> int:
    folder = Path.cwd()
    name = args.name or re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")[:63].strip("-") or "job"
    if re.match(TOKEN_PATTERN, name) is None:
        raise CliError("expected lower-case letters, digits and '-', at most 63, no dots", field="--name", status=2)
    text = template(name, Kind(args.kind), workdir=str(folder), file=args.file)
    if args.file == "-":
        page.text(text.encode())
        return 0
    write_new(Path(args.file), text, replace=args.force)
    page.remark(f"wrote {args.file}: edit it, then `weft submit {args.file}`")
    return 0


def template(name: str, kind: Kind, *, workdir: str, file: str = "job.yaml") -> str:
    """The text of a job file of this kind."""
    replicas = {
        Kind.TRAINING: "{want: 1}             # {min: 1, want: 4}: starts with fewer if there is no more room",
        Kind.INFERENCE: "{min: 1, want: 1, max: 4}  # its size follows its load",
    }.get(kind, "{want: 1}")
    parts = [
        _HEAD.format(file=clean(file), name=name, kind=kind.value),
        _WHAT.format(command=_COMMANDS[kind], workdir=quoted(workdir)),
        _NEEDS.format(replicas=replicas),
        _HOW,
    ]
    if kind in (Kind.TRAINING, Kind.BATCH):
        parts.append(_TRAINS)
    if kind is Kind.INFERENCE:
        parts.append(_SERVES)
    return "".join(parts)


def write_new(path: Path, text: str, *, replace: bool) -> None:
    """Write a file that is not there yet, or with `replace` in place of it. Raises `CliError`."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL)
    try:
        with os.fdopen(os.open(path, flags, 0o666), "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except FileExistsError:
        raise CliError(f"{path} is there already: --force replaces it") from None
    except (OSError, ValueError) as error:
        raise CliError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
