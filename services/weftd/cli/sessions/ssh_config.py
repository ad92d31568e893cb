"""`weft ssh-config`: the keys and the configuration by which `ssh JOB.weft` reaches a running job."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.client import Client
from weft.domain.job import JobState
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.sessions import ssh_keys
from weftd.cli.sessions.ssh_keys import CONFIG, KNOWN_HOSTS, SUFFIX, USER_KEY

JOBS_MAX = 100
VARIABLES = ("WEFT_HOME", "WEFT_URL", "WEFT_CA_FILE")  # no token: the file would keep it
CIPHERS = "aes128-gcm@openssh.com,chacha20-poly1305@openssh.com"


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "ssh-config",
        help="let ssh, scp, rsync and editors reach jobs as JOB.weft",
        description="Make new keys and write a configuration for OpenSSH, so that `ssh JOB.weft` reaches rank 0 of a"
        " running job and `ssh RANK.JOB.weft` another one. ~/.ssh/config gets a line that includes it. The token is"
        " not written.",
        epilog="weft ssh-config\nssh train.weft\nscp train.weft:out/last.pt .\nssh -L 6006:localhost:6006 1.train.weft",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--print", action="store_true", help="print the configuration and leave ~/.ssh/config as it is")
    connection.options(parser)
    parser.set_defaults(func=configure)


async def configure(args: argparse.Namespace) -> int:
    if args.json:
        raise CliError("a configuration is no JSON", field="--json", status=2)
    async with connection.connected(args) as client:
        names = await _running(client)
    environment = {**os.environ, **({"WEFT_URL": args.url} if args.url else {})}
    folder = ssh_keys.ssh_folder(environment)
    try:
        ssh_keys.make_keys(folder)
        text = configuration(folder, names, {name: environment[name] for name in VARIABLES if environment.get(name)})
        ssh_keys.write_whole(folder / CONFIG, text.encode())
        if args.print:
            print(text, end="")
            return 0
        _include(Path.home() / ".ssh", folder / CONFIG)
    except OSError as error:
        raise CliError(f"{error.filename}: {error.strerror}") from error
    page.note(f"for example: ssh {names[0] if names else 'JOB'}{SUFFIX}")
    return 0


async def _running(client: Client) -> list[str]:
    """The names of running jobs, each of which means one job."""
    jobs = (await client.jobs(states=(JobState.RUNNING,), limit=JOBS_MAX, elements=False, benchmarks=False)).jobs
    names = [job.name for job in jobs]
    return [name for name in names if names.count(name) == 1]


def configuration(folder: Path, names: Sequence[str], variables: Mapping[str, str]) -> str:
    """The file for OpenSSH. Editors offer the hosts that are named; the pattern is for all others."""
    hosts = " ".join(f"{name}{SUFFIX}" for name in names)
    command = [*_weft(), "ssh-proxy", "--keys", str(folder)]
    if variables:
        command = ["env", *(f"{name}={value}" for name, value in variables.items()), *command]
    lines = {
        "ProxyCommand": f"{_percent(shlex.join(command))} %h",
        "User": "weft",
        "IdentityFile": _quoted(folder / USER_KEY),
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "PreferredAuthentications": "publickey",
        "UserKnownHostsFile": _quoted(folder / KNOWN_HOSTS),
        "GlobalKnownHostsFile": "none",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlgorithms": ssh_keys.ALGORITHM,
        "UpdateHostKeys": "no",
        "Ciphers": CIPHERS,
        "ForwardAgent": "no",
        "ForwardX11": "no",
    }
    body = "".join(f"    {name} {value}\n" for name, value in lines.items())
    return f"# `weft ssh-config` writes this file again.\nHost {hosts} *{SUFFIX}\n{body}".replace("Host  *", "Host *")


def _weft() -> list[str]:
    """This program, whatever the PATH of an editor is."""
    typed = Path(sys.argv[0])
    if typed.name == "weft" and typed.is_file():
        return [str(typed.resolve())]
    return [sys.executable, "-m", "weftd.cli"]


def _percent(text: str) -> str:
    """OpenSSH replaces what follows a %."""
    return text.replace("%", "%%")


def _quoted(path: Path) -> str:
    return f'"{_percent(str(path))}"'


def _include(folder: Path, file: Path) -> None:
    """Have the user's configuration include this file: at its top, as an `Include` below a `Host` is a part of that."""
    line = f'Include "{file}"'
    own = folder / "config"
    folder.mkdir(exist_ok=True, mode=0o700)
    before = own.read_text() if own.exists() else ""
    if line not in before.splitlines():
        ssh_keys.write_whole(own.resolve(), f"{line}\n\n{before}".encode())
        page.remark(f"{own} includes {file} now")
