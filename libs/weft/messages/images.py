"""Images in the registry of the cluster, which the gateway guards, and logins at other registries. docs/images.md."""

import base64
import binascii
import re
from typing import ClassVar

import msgspec
from msgspec import Struct

from weft.domain.spec import Image, Token
from weft.messages import Message
from weft.messages.bounds import Epoch, JobId, Rank

OWN_HOST = "weft.internal"  # the host of an image that lies in the registry of the cluster, wherever that is reached
SHARED_TENANT = "admin"  # every tenant may use its images
COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
REPOSITORY = rf"{COMPONENT}(?:/{COMPONENT})+"
REPOSITORY_CHARACTERS_MAX = 150  # with a digest it is still an image that a job can name
TAG = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
DIGEST = r"sha256:[0-9a-f]{64}"
_matches = re.compile(rf"(?P<repository>{REPOSITORY})(?::(?P<tag>{TAG}))?(?:@(?P<digest>{DIGEST}))?").fullmatch


class RegistryImage(Struct, frozen=True, kw_only=True):
    """An image in the registry. Its repository is TENANT/NAME; without a tag and a digest it is `latest`."""

    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def tenant(self) -> str:
        return self.repository.partition("/")[0]

    def at(self, host: str) -> str:
        """The name of exactly this image at a host. It needs a digest."""
        return f"{host}/{self.repository}@{self.digest}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{OWN_HOST}/{self.repository}{tag}{f'@{self.digest}' if self.digest else ''}"


def registry_image(image: str, *, address: str = "") -> RegistryImage | None:
    """None for an image of any other registry. `address`: another host name of this one. Raises ValueError."""
    host, _, rest = image.partition("/")
    if host not in {OWN_HOST, address or OWN_HOST}:
        return None
    if (found := _matches(rest)) is None or len(found["repository"]) > REPOSITORY_CHARACTERS_MAX:
        raise ValueError(f"expected {OWN_HOST}/TENANT/NAME with :TAG or @sha256:DIGEST, not {image}")
    tag, digest = found["tag"] or "", found["digest"] or ""
    return RegistryImage(repository=found["repository"], tag=tag if tag or digest else "latest", digest=digest)


def may_read(tenant: str, repository: str) -> bool:
    return repository.partition("/")[0] in (tenant, SHARED_TENANT)


class ImageView(Struct, frozen=True, kw_only=True):
    """An image in the registry. `name`: for jobs, without a tag; `tags`: none where a newer image took its last one."""

    name: str
    digest: str
    bytes: int
    tags: tuple[str, ...]


class ImagesView(Struct, frozen=True, kw_only=True):
    """The images of a tenant. `prefix`: the beginning of their names. `bytes`: their sum, at most `bytes_max`;
    layers that several share are counted once."""

    prefix: str
    bytes: int
    bytes_max: int
    images: tuple[ImageView, ...]


class ImageDeleted(Struct, frozen=True, kw_only=True):
    """The names that no image has any more."""

    deleted: tuple[str, ...]


class ReadImage(Message, frozen=True, kw_only=True):
    """Executor → gateway, a request: the right to pull the image of a run that the node is to start. Answered by
    `ImageRead`."""

    subject: ClassVar[str] = "weft.images.{node_id}"
    node_id: Token
    job_id: JobId
    epoch: Epoch
    rank: Rank
    image: Image


class ImageRead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The image as the node's engine pulls it, and a user and password for this repository alone, valid for a while.
    `refused`: why this node gets none now. `away`: why no node gets any now. `missing`: why the image cannot be had.
    An image of another registry has its tenant's login there, or none; `bad_login`: why the stored one is none."""

    reference: str = ""
    user: str = ""
    password: str = ""
    refused: str = ""
    away: str = ""
    missing: str = ""
    bad_login: str = ""


DOCKER_HUB = "docker.io"  # the registry of names without a host
LOGIN_PREFIX = "registry-"
HOST = r"[a-z0-9]([a-z0-9.-]{0,46}[a-z0-9])?(:[0-9]{1,5})?"
_aliases = {DOCKER_HUB: (f"https://index.{DOCKER_HUB}/v1/", f"index.{DOCKER_HUB}")}  # as Docker's own client writes it


class _Login(Struct, frozen=True, kw_only=True):
    auth: str = ""
    username: str = ""
    password: str = ""


class _Logins(Struct, frozen=True, kw_only=True):
    auths: dict[str, _Login]


def host_of(image: str) -> str:
    """The host and port of the registry that an image's name means."""
    host, slash, _ = image.partition("/")
    return host if slash and ("." in host or ":" in host or host == "localhost") else DOCKER_HUB


def login_secret(host: str) -> str:
    """The name of the secret with a tenant's login at a registry: `registry-ghcr-io` for ghcr.io."""
    return LOGIN_PREFIX + re.sub(r"[^a-z0-9]+", "-", host.lower()).strip("-")


def login_text(host: str, user: str, password: str) -> str:
    """The value of that secret, in the form of Docker's own config.json."""
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    return msgspec.json.encode({"auths": {host: {"auth": auth}}}).decode()


def login_of(text: str, host: str) -> tuple[str, str]:
    """The user and the password at a host. Raises ValueError, without either."""
    try:
        auths = msgspec.json.decode(text, type=_Logins).auths
        names = (host, f"https://{host}", f"https://{host}/", *_aliases.get(host, ()))
        login = next(auths[name] for name in names if name in auths)
        user, _, password = base64.b64decode(login.auth, validate=True).decode().partition(":")
    except StopIteration:
        raise ValueError(f"it has no login at {host}") from None
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError):
        raise ValueError("it is not in the form of Docker's config.json") from None
    user, password = login.username or user, login.password or password
    if not user or not password:
        raise ValueError(f"its login at {host} lacks a user or a password")
    return user, password
