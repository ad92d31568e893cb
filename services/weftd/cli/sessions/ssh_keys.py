"""The folder with the keys, the known host key and the configuration by which SSH clients reach jobs."""

import os
from collections.abc import Mapping
from pathlib import Path

import asyncssh

from weftd.cli.cli_error import CliError
from weftd.cli.sessions.ssh_server import Keys

SUFFIX = ".weft"
HOST_KEY, USER_KEY, KNOWN_HOSTS, CONFIG = "host_key", "user_key", "known_hosts", "config"
ALGORITHM = "ssh-ed25519"


def ssh_folder(environment: Mapping[str, str]) -> Path:
    config = environment.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "weft" / "ssh"


def make_keys(folder: Path) -> None:
    """Make new keys in place of those that are there. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    host, user = (asyncssh.generate_private_key(ALGORITHM, comment="weft") for _ in range(2))
    write_whole(folder / USER_KEY, user.export_private_key())
    write_whole(folder / f"{USER_KEY}.pub", user.export_public_key())
    write_whole(folder / HOST_KEY, host.export_private_key())
    write_whole(folder / KNOWN_HOSTS, f"*{SUFFIX} ".encode() + host.export_public_key())


def read_keys(folder: Path) -> Keys:
    """Raises CliError."""
    try:
        host = asyncssh.read_private_key(folder / HOST_KEY)
        users = asyncssh.read_authorized_keys([str(folder / f"{USER_KEY}.pub")])
    except (OSError, ValueError, asyncssh.KeyImportError) as error:
        raise CliError(f"no keys in {folder}: `weft ssh-config` makes them ({error})") from error
    return Keys(host, users)


def write_whole(path: Path, content: bytes) -> None:
    """Put a file that only its owner reads in the place of the one that is there."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    os.replace(part, path)
