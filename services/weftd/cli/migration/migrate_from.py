"""`weft migrate-from`: a batch script of Slurm, or a configuration of Determined, as a job file.

What has no counterpart is named at the head of the file that is written, and on stderr.
"""

import argparse
import os
import re
from pathlib import Path

import msgspec

from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weftd.cli import page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.jobs.submit import read_spec
from weftd.cli.migration.determined import from_determined
from weftd.cli.migration.init import write_new
from weftd.cli.migration.slurm import from_slurm
from weftd.cli.migration.written import Translated, page_of

_SYSTEMS = ("slurm", "determined")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "migrate-from", help="translate a Slurm script or a Determined configuration", description=__doc__
    )
    parser.add_argument("system", choices=_SYSTEMS, metavar="SYSTEM", help=" or ".join(_SYSTEMS))
    parser.add_argument("file", metavar="FILE", help="script or configuration to translate; `-` is stdin")
    parser.add_argument("-o", "--output", metavar="FILE", help="job file to write (default: stdout)")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.set_defaults(func=migrate_from)


async def migrate_from(args: argparse.Namespace) -> int:
    body = read_spec(args.file)
    translated = _translated(args, body)
    for remark in translated.remarks:
        page.remark(f"note: {clean(remark.where)}: {clean(remark.sentence)}")
    text = page_of(translated, args.file)
    try:
        decode_spec(msgspec.json.encode(translated.spec))
        decode_spec(text.encode(), content="yaml")
    except (SpecError, UnicodeEncodeError) as error:
        page.remark(f"note: the job file needs a change before it can be submitted: {clean(str(error))}")
    if args.output is None:
        page.text(text.encode())
        return 0
    write_new(Path(args.output), text, replace=args.force)
    page.note(f"look at it, then: weft submit {args.output}")
    return 0


def _translated(args: argparse.Namespace, body: bytes) -> Translated:
    here = os.getcwd() if args.file == "-" else str(Path(args.file).resolve().parent)
    path = "job" if args.file == "-" else args.file
    if b"\0" in body:
        raise CliError(f"{clean(args.file)} is no text: it has a NUL character")
    if args.system == "determined":
        return from_determined(body, path=path, folder=here)
    if not re.search(rb"\A#!|^#SBATCH", body, re.MULTILINE):
        raise CliError(f"{clean(args.file)} is no batch script: it does not begin with #!, and has no line #SBATCH")
    return from_slurm(body.decode(errors="replace"), path=path, folder=here)
