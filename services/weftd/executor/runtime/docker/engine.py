"""The Docker engine: the SDK's calls in a few threads, its many errors as one kind, RuntimeUnavailableError.

An error that the engine answers is an EngineRefusedError, which is of that kind. So a caller that expects the error
catches it, and everywhere else it means that the engine does not work now. An invalid answer means the same: a caller
parses the answer within the call.

A call on a connection that the engine closed while idle (a restart of the engine) is tried once more; each call is
bounded by the client's own time limit.
"""

import asyncio
import functools
import http.client
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import docker
import requests.exceptions
import urllib3.exceptions
from docker.errors import APIError, DockerException, NotFound
from docker.utils import kwargs_from_env

from weftd.executor.runs import RuntimeUnavailableError

P = ParamSpec("P")
T = TypeVar("T")

CALLS_AT_ONCE = 6
PULLS_AT_ONCE = 3
CALL_SECONDS_MAX = 15
PULL_READ_SECONDS_MAX = 60

GONE = (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)
NONSENSE = (ValueError, LookupError, TypeError, AttributeError, struct.error)  # from parsing an invalid answer

CONFLICT = 409  # a name is taken; or the request is in progress already, or impossible in this state

NOT_FOUND = 404


class EngineRefusedError(RuntimeUnavailableError):
    """The engine answered with an error. `str` gives its own words."""

    def __init__(self, words: str, status: int) -> None:
        super().__init__(words)
        self.status = status


class MissingError(EngineRefusedError):
    """The engine does not have the object of the request."""


class Follower(docker.APIClient):
    """Follows logs of our containers, none of which has a terminal.

    The SDK would ask whether there is one after the log's answer has begun, and leave that open if the question fails.
    """

    def _check_is_tty(self, container: str) -> bool:
        return False


class DockerEngine:
    """`call` runs one of the SDK's low-level calls, and parses its answer."""

    def __init__(self) -> None:
        try:
            self.client = docker.from_env(timeout=CALL_SECONDS_MAX, max_pool_size=CALLS_AT_ONCE).api
            self.puller = docker.from_env(timeout=PULL_READ_SECONDS_MAX, max_pool_size=PULLS_AT_ONCE).api
            self.follower = Follower(timeout=CALL_SECONDS_MAX, **kwargs_from_env())
        except (DockerException, *GONE, *NONSENSE) as error:
            raise RuntimeUnavailableError(f"no Docker engine: {error}") from error
        self._closed = False
        self._calls = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="docker")
        self._pulls = ThreadPoolExecutor(PULLS_AT_ONCE, thread_name_prefix="docker-pull")

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call. Raises EngineRefusedError, and RuntimeUnavailableError if the engine does not answer."""
        work = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._calls, lambda: _translated(lambda: _steady(work)))

    async def pull(self, image: str, *, seconds_max: float, auth: dict[str, str] | None = None) -> str:
        """Pull an image. Empty, or why that failed. `auth`: a user name and a password for its registry."""
        return await asyncio.get_running_loop().run_in_executor(
            self._pulls, lambda: _translated(lambda: self._pull(image, seconds_max, auth))
        )

    async def refusal(self, image: str, *, auth: dict[str, str] | None = None) -> str:
        """Ask the registry for the image's manifest. Empty, or why it gives none. A pull by a digest that the engine
        has already asks no registry."""
        try:
            await self.call(self.puller.inspect_distribution, image, auth_config=auth)
        except EngineRefusedError as error:
            return str(error)
        return ""

    def _pull(self, image: str, seconds_max: float, auth: dict[str, str] | None) -> str:
        """Pull an image. Empty, or why that failed. The time limit is checked at each progress message."""
        repository, tag = _reference(image)
        deadline = time.monotonic() + seconds_max
        try:
            for news in self.puller.pull(repository, tag=tag, stream=True, decode=True, auth_config=auth):
                if "error" in news:
                    return str(news["error"])
                if self._closed or time.monotonic() > deadline:
                    return f"not fetched within {seconds_max:g} s"
        except APIError as error:
            return _words(error)
        except requests.exceptions.ReadTimeout:
            return "the registry stopped sending"
        return ""

    async def remove(self, container: str) -> None:
        """Remove a container with its volumes, even if it runs or is missing. Raises RuntimeUnavailableError."""
        try:
            await self.call(self.client.remove_container, container, v=True, force=True)
        except MissingError:
            pass
        except EngineRefusedError as error:
            if error.status != CONFLICT:  # being removed already
                raise RuntimeUnavailableError(str(error)) from error

    def close(self) -> None:
        self._closed = True
        self._calls.shutdown(wait=False, cancel_futures=True)
        self._pulls.shutdown(wait=False, cancel_futures=True)
        for client in (self.client, self.puller, self.follower):
            client.close()


def _words(error: APIError) -> str:
    return str(error.explanation or error).strip()


def _translated(work: Callable[[], T]) -> T:
    """The one place where an error of the engine, or of its SDK, becomes one of ours."""
    try:
        return work()
    except NotFound as error:
        raise MissingError(_words(error), NOT_FOUND) from error
    except APIError as error:
        raise EngineRefusedError(_words(error), error.status_code or 0) from error
    except (DockerException, *GONE) as error:
        raise RuntimeUnavailableError(f"the Docker engine does not answer: {error}") from error
    except NONSENSE as error:
        raise RuntimeUnavailableError(f"the Docker engine's answer is not valid: {error!r}") from error


def _steady(work: Callable[[], T]) -> T:
    try:
        return work()
    except requests.exceptions.ReadTimeout:
        raise  # The engine may still be working: a second try would only wait as long again.
    except requests.exceptions.ConnectionError:
        return work()


def _reference(image: str) -> tuple[str, str]:
    """`host:5000/name:tag` → (`host:5000/name`, `tag`); a digest is a tag to the SDK; none means latest."""
    if "@" in image:
        name, _, digest = image.partition("@")
        return name, digest
    name, colon, tag = image.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (image, "latest")
