"""A support bundle: answers of the API, checks, settings and the ends of logs, in one bounded file without secrets.

Every text is searched for the secrets that are known here (credentials, tokens, passwords of settings), and for words
that look like one; each is replaced by `***`.
"""

import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from weft.credentials import Credentials
from weftd.cli.cli_error import CliError
from weftd.cli.local import ClusterHome

BYTES_MAX = 16 << 20  # before compression
LOG_BYTES_MAX = 256 << 10  # the end of each
SECRET_LENGTH_MIN = 8
HIDDEN = "***"
LOOKS_SECRET = re.compile(
    r"weft_[A-Za-z0-9_-]{16,}"  # a token
    r"|(?<=://)[^/\s@]+(?=@)"  # user and password of an address
    r"|(?i:(?<=bearer )[A-Za-z0-9._~+/=-]+)"
    r"|(?i:(?<=#code=)[A-Za-z0-9_-]+)"
)
_SETTINGS = ("WEFT_", "EXECUTOR_", "GATEWAY_", "SCHEDULER_", "SCORER_", "REALLOCATOR_", "ROUTER_", "TELEMETRY_")


def write_bundle(path: Path, answers: Mapping[str, object], *, home: ClusterHome, environ: Mapping[str, str]) -> int:
    """Write the bundle; returns its size. Raises CliError."""
    secrets = sorted(known_secrets(home, environ), key=len, reverse=True)
    texts = {
        **{
            f"{name}.json": msgspec.json.format(msgspec.json.encode(answer)).decode()
            for name, answer in answers.items()
        },
        "settings.txt": "".join(f"{name}={environ[name]}\n" for name in sorted(environ) if name.startswith(_SETTINGS)),
    }
    left = BYTES_MAX
    try:
        with (
            open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle,
        ):
            for name, text in (*texts.items(), *_logs(home)):
                content = without_secrets(text, secrets).encode(errors="replace")[:left]
                bundle.writestr(name, content)
                left -= len(content)
        return path.stat().st_size
    except FileExistsError:
        raise CliError(f"{path} exists already") from None
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with `***` for each of these secrets, the longest first, and for words that look like one."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return LOOKS_SECRET.sub(HIDDEN, text)


def known_secrets(home: ClusterHome, environ: Mapping[str, str]) -> set[str]:
    """The secrets that this command can find: of the home, of files that settings name, and in settings."""
    files = [path for path in Credentials(home.credentials).folder.rglob("*") if path.is_file()]
    if folder := environ.get("WEFT_CREDENTIALS"):
        files += [path for path in Path(folder).rglob("*") if path.is_file()]
    files += [Path(value) for name, value in environ.items() if _names_secret(name) and value]
    found = {_read(path) for path in files if path.suffix != ".conf"}
    found |= {environ.get("WEFT_TOKEN", ""), *_passwords(environ.values())}
    if (client := home.client()) is not None:
        found.add(client.token)
    return {secret for secret in found if len(secret) >= SECRET_LENGTH_MIN}


def _names_secret(name: str) -> bool:
    return name.startswith(_SETTINGS) and name.endswith(("PASSWORD_FILE", "TOKEN_FILE", "SECRET_FILE", "KEY_FILE"))


def _passwords(values: Iterable[str]) -> Iterator[str]:
    for value in values:
        for address in value.split(","):
            try:
                yield urlsplit(address).password or ""
            except ValueError:
                continue


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LOG_BYTES_MAX).decode(errors="replace").strip()
    except OSError:
        return ""


def _logs(home: ClusterHome) -> Iterator[tuple[str, str]]:
    """The ends of the logs of services and servers, the newest first."""
    folders = (home.logs, home.root, *(home.nodes.iterdir() if home.nodes.is_dir() else ()))
    logs = [path for folder in folders if folder.is_dir() for path in folder.glob("*.log") if path.is_file()]
    for path in sorted(logs, key=lambda path: -path.stat().st_mtime):
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
                yield f"logs/{path.relative_to(home.root)}", file.read(LOG_BYTES_MAX).decode(errors="replace")
        except OSError as error:
            yield f"logs/{path.relative_to(home.root)}", f"cannot be read: {error.strerror}"
