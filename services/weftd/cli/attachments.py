"""The parts of the submitting shell that a job takes along: variables by name, its virtual environment, and names of
secrets."""

import argparse
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import structs

from weft.client import Refused
from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.spec import JobSpec
from weftd.cli.cli_error import CliError


def env_option(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    what = "environment variable; K alone takes its value from this shell; repeatable"
    parser.add_argument("-e", "--env", action="append", default=[], metavar="K=V", help=what)


def venv_option(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    what = "run in this shell's virtual environment; nodes must have it in the same folder"
    parser.add_argument("--venv", action="store_true", help=what)


def secret_option(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    what = "set variable K to a stored secret; K alone: HF_TOKEN uses the secret hf-token; repeatable"
    parser.add_argument("--secret", action="append", default=[], metavar="K=NAME", help=what)
    _secret_file_option(parser)


def _secret_file_option(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    what = "set variable K to the path of a file with this stored secret; repeatable"
    parser.add_argument("--secret-file", action="append", default=[], metavar="K=NAME", help=what)


def secrets_along(args: argparse.Namespace) -> dict[str, str]:
    """For each variable that --secret names, the name of the secret."""
    return _names(args.secret)


def secret_files_along(args: argparse.Namespace) -> dict[str, str]:
    return _names(args.secret_file)


def _names(pairs: Sequence[str]) -> dict[str, str]:
    parts = (pair.partition("=") for pair in pairs)
    return {name: secret if given else name.lower().replace("_", "-") for name, given, secret in parts}


def env_along(args: argparse.Namespace, environment: Mapping[str, str], *, contained: bool) -> dict[str, str]:
    """The variables that --venv and --env give a job, those of --env last. `contained`: it has an image. Raises
    `CliError`."""
    if args.venv and contained:
        raise CliError("is for processes: a container has the environment of its image", field="--venv", status=2)
    from weft.packing import venv_of  # slow to import

    try:
        own = venv_of(environment) if args.venv else {}
    except Refused as error:
        raise CliError(error.reason, field="--venv") from error
    return {**own, **dict(env_of(pair, environment) for pair in args.env)}


def env_of(pair: str, environment: Mapping[str, str]) -> tuple[str, str]:
    name, given, value = pair.partition("=")
    if not given and name not in environment:
        raise CliError(f"{name} is not set here: say {name}=VALUE", field="--env")
    return name, value if given else environment[name]


def read_with_env(
    body: bytes, content: str, args: argparse.Namespace, environment: Mapping[str, str], *, context: str | None = None
) -> JobSpec:
    """The specification in a job file, with the attachments added to its own. Raises `CliError`.

    `context`: the digest of packed files.
    """
    try:
        spec = decode_spec(body, content=content)
        contained = spec.image is not None or any(role.image is not None for role in spec.roles.values())
        env = {**spec.env, **env_along(args, environment, contained=contained)}
        added = structs.replace(
            spec,
            context=context or spec.context,
            env=env,
            secrets={**spec.secrets, **secrets_along(args)},
            secret_files={**spec.secret_files, **secret_files_along(args)},
        )
        return decode_spec(msgspec.json.encode(added))
    except SpecError as error:
        more = "".join(f"\n  also {field}: {reason}" for field, reason in error.mistakes[1:])
        raise CliError(error.reason + more, field=error.field) from error
