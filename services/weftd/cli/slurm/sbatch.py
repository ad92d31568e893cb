"""`sbatch` and `srun`: a script, or a command, translated as `weft migrate-from slurm` does and submitted at once."""

import os
import sys
from collections.abc import Mapping, Sequence

import msgspec

from weft.client import Client, Refused
from weft.client.place import PATIENT_SECONDS
from weft.domain.arrays import ARRAY_PREFIX
from weft.domain.decoding.spec_decoder import SPEC_BYTES_MAX, SpecError, decode_spec
from weft.messages.http import Submitted
from weftd.cli import page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.migration.slurm import NO_COUNTERPART, Submission, from_slurm
from weftd.cli.migration.slurm_options import UnknownOptionError, split
from weftd.cli.migration.written import Translated
from weftd.cli.slurm.numbers import number_of, reference_of
from weftd.cli.slurm.reading import USER_LABEL, cluster, user_name

_OURS = frozenset({"dependency", "parsable", "quiet", "verbose", "wait", "wrap"})
# They change how Slurm accounts for a job, whom it mails, or where on a node a task runs: the job does the same.
_WITHOUT_EFFECT = frozenset(
    {
        "account",
        "cpu-bind",
        "exact",
        "exclude",
        "gpu-bind",
        "gres-flags",
        "hint",
        "jobid",
        "kill-on-bad-exit",
        "label",
        "mail-type",
        "mail-user",
        "mem-bind",
        "mpi",
        "nice",
        "no-kill",
        "open-mode",
        "overcommit",
        "overlap",
        "oversubscribe",
        "qos",
        "unbuffered",
        "wckey",
    }
)
_WHEN = {"after": "started", "afterany": "any", "afternotok": "not_ok", "afterok": "ok", "aftercorr": "ok"}


async def sbatch(words: Sequence[str]) -> int:
    options, rest = _split(words)
    wrapped = next((each.removeprefix("--wrap=") for each in reversed(options) if each.startswith("--wrap=")), None)
    if wrapped is not None and rest:
        raise CliError("script arguments not permitted with --wrap option")
    if wrapped is not None:
        path, text = "wrap", f"#!/bin/sh\n{wrapped}\n"
    else:
        path, text = _script(rest)
    translated = _translated(text, path, options, rest[1:])
    left = translated.left
    async with cluster(patience=PATIENT_SECONDS if "wait" in left else None) as client:
        submitted = await _submitted(client, translated)
        number = number_of(submitted.id)
        if "parsable" in left:
            print(number, flush=True)
        elif "quiet" not in left:
            print(f"Submitted batch job {number}", flush=True)
        return await _status(client, submitted) if "wait" in left else 0


async def srun(words: Sequence[str]) -> int:
    """In a job: the command, in its place. Elsewhere: the command as a job, followed to its end."""
    options, command = _split(words)
    if not command:
        raise CliError("No command given to execute")
    if "WEFT_JOB_ID" in os.environ and "WEFT_RANK" in os.environ:
        return _replaced_by(command)
    translated = _translated('#!/bin/sh\nexec "$@"\n', command[0], options, command)
    if "array" in translated.spec:
        raise CliError("--array: an array is submitted by sbatch")
    from weftd.cli.jobs.following import follow  # slow to import, and not needed by sbatch

    async with cluster(patience=PATIENT_SECONDS) as client:
        return await follow(client, await _submitted(client, translated))


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    try:
        return split(words)
    except UnknownOptionError as error:
        raise CliError(str(error)) from None


def _replaced_by(command: Sequence[str]) -> int:
    sys.stdout.flush()
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        raise CliError(f"{clean(command[0])}: {error.strerror}", status=127) from error


def _script(rest: Sequence[str]) -> tuple[str, str]:
    """The path and the text of the script, from stdin if none is named. Raises CliError."""
    try:
        if rest:
            with open(rest[0], "rb") as file:
                body = file.read(SPEC_BYTES_MAX + 1)
        else:
            body = sys.stdin.buffer.read(SPEC_BYTES_MAX + 1)
    except OSError as error:
        raise CliError(f"Unable to open file {clean(rest[0])}: {error.strerror}") from error
    if not body.startswith(b"#!") or b"\0" in body or len(body) > SPEC_BYTES_MAX:
        raise CliError("This does not look like a batch script: it must be text that begins with #!, such as #!/bin/sh")
    return (rest[0] if rest and rest[0] != "/dev/stdin" else "sbatch"), body.decode(errors="replace")


def _translated(text: str, path: str, options: Sequence[str], arguments: Sequence[str]) -> Translated:
    """The job. Raises CliError for anything that would be something else than Slurm's job."""
    submission = Submission(words=options, arguments=arguments, environment=os.environ, user=user_name())
    translated = from_slurm(text, path=path, folder=os.getcwd(), submission=submission)
    for mistake in translated.mistakes:
        raise CliError(f"{mistake.where}: {mistake.sentence}")
    for name, value in translated.left.items():
        if name in _OURS or name in _WITHOUT_EFFECT or (name == "constraint" and not value):
            continue
        why = NO_COUNTERPART.get(name)
        raise CliError(f"--{name}: {why}" if why else f"unrecognized option '--{name[:60]}'")
    for remark in translated.remarks:
        if remark.where.endswith("--export"):
            page.note(f"sbatch: {clean(remark.sentence)}")
    return translated


async def _submitted(client: Client, translated: Translated) -> Submitted:
    """Submit the job. Raises CliError; then nothing is submitted."""
    spec = dict(translated.spec)
    spec["labels"] = {**spec.get("labels", {}), USER_LABEL: user_name()[:253]}
    if dependency := translated.left.get("dependency"):
        spec |= await _dependencies(client, dependency, os.environ)
    try:
        decode_spec(body := msgspec.json.encode(spec))
        return await client.submit(body)
    except (SpecError, Refused) as error:
        raise CliError(error.reason, field=error.field) from error
    except UnicodeEncodeError:
        raise CliError("the script, its arguments or the environment are no text in UTF-8") from None


async def _dependencies(client: Client, text: str, environment: Mapping[str, str]) -> dict[str, object]:
    """`afterok:71:72,afterany:73_4,singleton`: all of them. Raises CliError."""
    found: dict[str, object] = {}
    after: list[dict[str, object]] = []
    for part in text.split(","):
        kind, *numbers = part.split(":")
        if part == "singleton":
            found["singleton"] = True
        elif kind not in _WHEN or not numbers or "?" in part or "+" in part:
            kinds = ", ".join(f"{each}:JOB" for each in _WHEN)
            raise CliError(f"--dependency: expected {kinds} or singleton, with commas, not {part[:60]!r}")
        else:
            for number in numbers:
                job = await _job(client, number, environment)
                after.append(
                    {"job": job, "when": _WHEN[kind]} | ({"element_wise": True} if kind == "aftercorr" else {})
                )
    return found | ({"after": after} if after else {})


async def _job(client: Client, number: str, environment: Mapping[str, str]) -> str:
    """The id of a job or an array that is there, or the name of an element. Raises CliError."""
    reference = reference_of(number, environment)
    if reference.indices:
        return f"{reference.array}_{reference.indices[0]}"
    for ask, job_id in ((client.job, reference.job), (client.array, reference.array)):
        try:
            return (await ask(job_id)).id
        except Refused as error:
            if error.status != 404:
                raise
    raise CliError(f"--dependency: there is no job {number}")


async def _status(client: Client, submitted: Submitted) -> int:
    """The exit status of a job, or the highest of an array, once it is over."""
    if submitted.id.startswith(ARRAY_PREFIX):
        from weftd.cli.jobs.wait import exit_status_of_array, until_array_over  # slow to import

        return await exit_status_of_array(client, await until_array_over(client, submitted.id))
    from weftd.cli.jobs.following import exit_status_of

    return exit_status_of(await client.until_over(submitted.id))
