"""The cluster that a program or a command uses: its address and token, from the environment, from the contexts of
`weft login`, or from `weft up`."""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from weft.client.contexts import LOCAL, config_file, read_contexts
from weft.client.errors import ClientError

QUICK_SECONDS = 3.0  # a person waits: an error should come soon
RESTART_SECONDS = 10.0  # a gateway that is known to be there starts again in less
PATIENT_SECONDS = 60.0  # for waits of hours: longer than a gateway takes to restart
CLIENT_FILE = "client.json"


class Place(Struct, frozen=True, kw_only=True):
    """The address and token of a cluster. `token_from`: the source of the token, to explain a refusal. `is_known`: the
    address is one that has been used before, and not typed for this command."""

    url: str
    token: str
    token_from: str
    ca_file: str = ""
    is_known: bool = False

    @property
    def first_seconds(self) -> float:
        """How long to wait for the first answer."""
        return RESTART_SECONDS if self.is_known else QUICK_SECONDS


class Ways(Struct, frozen=True, kw_only=True):
    """The ways to give an address and a token, as a message to the user names them."""

    url: str = "set WEFT_URL"
    token: str = "set WEFT_TOKEN"


class ClientFile(Struct, frozen=True, kw_only=True):
    """The file `client.json` that `weft up` writes into its home."""

    url: str
    token: str


def find_place(
    environment: Mapping[str, str], *, url: str = "", token: str = "", context: str = "", ways: Ways | None = None
) -> Place:
    """The place from `url` and `token`, or from the `context` of this name; else from WEFT_URL and WEFT_TOKEN; else
    from WEFT_CONTEXT, the files of `weft up` in WEFT_HOME, the current context, or the files of `weft up`. Raises
    ClientError."""
    ways = ways or Ways()
    url_from, is_known = ("--url", False) if url else ("WEFT_URL", True)
    token_from = "--token" if token else "WEFT_TOKEN"
    if url and context:
        raise ClientError("give --url or --context, not both")
    given = token
    if not context:
        url = url or environment.get("WEFT_URL", "")
        token = token or environment.get("WEFT_TOKEN", "")
    if url and not is_address(url):
        raise ClientError(f"{url_from}: expected an address such as http://127.0.0.1:8470, got {url}")
    if token and not (token.isascii() and token.isprintable()):
        raise ClientError(f"{token_from} is not a token: it has characters that no token has")
    ca_file = environment.get("WEFT_CA_FILE", "")
    if url and token:
        return Place(url=url, token=token, token_from=token_from, ca_file=ca_file, is_known=is_known)
    contexts = read_contexts(environment)
    usual = LOCAL if environment.get("WEFT_HOME") else contexts.current
    name = context or environment.get("WEFT_CONTEXT", "") or usual or LOCAL
    chosen = contexts.at(url) if url else contexts.named(name)
    if chosen is not None:  # WEFT_TOKEN without WEFT_URL is a token of another cluster
        if not (given or chosen.token):
            raise ClientError(f"no token for {chosen.url}: `weft login {chosen.url}`")
        return Place(
            url=chosen.url,
            token=given or chosen.token,
            token_from="--token" if given else str(config_file(environment)),
            ca_file=ca_file or chosen.ca_file,
            is_known=True,
        )
    path = weft_home(environment) / CLIENT_FILE
    left = _left_by_up(path)
    if left is None:
        raise ClientError(_missing(url, token, path, ways))
    if url and url.rstrip("/") != left.url.rstrip("/"):  # a token is sent to its own cluster only
        raise ClientError(f"no token for {url}: {ways.token}")
    return Place(
        url=left.url,
        token=token or left.token,
        token_from=token_from if token else str(path),
        ca_file=ca_file,
        is_known=_is_up(path.with_name("up.lock")),
    )


def weft_home(environment: Mapping[str, str]) -> Path:
    """The folder of the cluster that `weft up` runs for this user."""
    if home := environment.get("WEFT_HOME"):
        return Path(home)
    data = environment.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "weft"


def _is_up(lock: Path) -> bool:
    """Return True while the process that wrote its id into the lock of a home lives. The lock itself is not tried: a
    `weft up` that starts at that moment would find it taken."""
    try:
        os.kill(int(lock.read_text()), 0)
    except PermissionError:
        return True  # it is another user's
    except (OSError, ValueError, OverflowError):
        return False
    return True


def is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _left_by_up(path: Path) -> ClientFile | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClientFile)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ClientError(f"{path} is damaged, or was not written by `weft up`: {error}") from error


def _missing(url: str, token: str, path: Path, ways: Ways) -> str:
    if url or token:
        return f"no token: {ways.token}" if url else f"no address: {ways.url}"
    return (
        "no cluster is known: start one with `weft up`, sign in to one with `weft login URL`, or set WEFT_URL and"
        f" WEFT_TOKEN (looked in {path})"
    )
