"""`weft submit`: a job from a YAML or JSON file, or from stdin.

A process runs in the folder in which this is called, unless the file sets `workdir`.
"""

import argparse
import os
import sys
from pathlib import Path

from msgspec import structs

from weft.client import Refused
from weft.client.place import PATIENT_SECONDS
from weft.domain.decoding.spec_decoder import SPEC_BYTES_MAX, SpecError, decode_spec
from weft.domain.spec import JobSpec
from weftd.cli import connection, page
from weftd.cli.attachments import env_option, read_with_env, secret_option, venv_option
from weftd.cli.cli_error import CliError
from weftd.cli.jobs.submitted import follow_submitted, submitted_line
from weftd.cli.jobs.sync import pack, store, sync_option


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("submit", help="submit a job from a YAML or JSON file", description=__doc__)
    parser.add_argument("file", metavar="FILE", help="job file in YAML or JSON; `-` is stdin")
    env_option(parser)
    venv_option(parser)
    secret_option(parser)
    sync_option(parser)
    parser.add_argument("--key", help="idempotency key: submitting again with it returns the same job")
    parser.add_argument("-f", "--follow", action="store_true", help="stream its log and exit with its status")
    page.notes_option(parser)
    connection.options(parser)
    parser.set_defaults(func=submit)


async def submit(args: argparse.Namespace) -> int:
    if args.json and args.follow:
        raise CliError("a log is no JSON: choose --json or --follow", status=2)
    given = read_spec(args.file)
    content = content_of(args.file, given)
    adds = args.env or args.venv or args.secret or args.sync
    packed = pack(args.sync) if args.sync is not None else None
    context = None if packed is None else packed.digest
    body = read_with_env(given, content, args, os.environ, context=context) if adds else given
    body = _run_here(body, content, cwd=os.getcwd())
    async with connection.connected(args, patience=PATIENT_SECONDS if args.follow else None) as client:
        if packed is not None:
            await store(client, packed)
        try:
            submitted = await client.submit(body, key=args.key, content=content)
        except Refused as error:
            more = "".join(f"\n  also {field}: {reason}" for field, reason in error.errors[1:])
            raise CliError(error.reason + more, field=error.field) from error  # a field of the file
        page.notes_on(args, submitted.notes)
        if args.follow:
            return await follow_submitted(client, submitted)
    page.answered(args, submitted, submitted.id)
    page.note(submitted_line(submitted))
    return 0


def _run_here(body: JobSpec | bytes, content: str, *, cwd: str) -> JobSpec | bytes:
    """The specification with `workdir` set to this folder if a process would start elsewhere. What cannot be decoded
    stays as it is: the gateway names the mistakes."""
    try:
        spec = decode_spec(body, content=content) if isinstance(body, bytes) else body
    except SpecError:
        return body
    contained = spec.image is not None or any(role.image is not None for role in spec.roles.values())
    if contained or spec.workdir is not None or spec.context is not None:
        return body
    return structs.replace(spec, workdir=cwd)


def content_of(name: str, body: bytes) -> str:
    """The format by the name's ending; else JSON if the text begins with a brace."""
    match Path(name).suffix.lower():
        case ".json":
            return "json"
        case ".yaml" | ".yml":
            return "yaml"
        case _:
            return "json" if body.lstrip()[:1] == b"{" else "yaml"


def read_spec(name: str) -> bytes:
    """The whole file, unless it is larger than any specification may be."""
    try:
        if name == "-":
            body = sys.stdin.buffer.read(SPEC_BYTES_MAX + 1)
        else:
            with open(name, "rb") as file:
                body = file.read(SPEC_BYTES_MAX + 1)
    except OSError as error:
        raise CliError(f"cannot read {name}: {error.strerror}") from error
    if len(body) > SPEC_BYTES_MAX:
        raise CliError(f"{name} is larger than {SPEC_BYTES_MAX} bytes")
    return body
