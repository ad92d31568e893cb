"""Whether this machine has a Docker engine, its client and the client's Compose plugin."""

import os
import socket
import subprocess
from typing import NoReturn
from urllib.parse import urlsplit

import docker
import docker.errors
import pytest

ENGINE_SECONDS_MAX = 30
PROBE_SECONDS_MAX = 5.0
CLIENT_SECONDS_MAX = 30.0


def need_engine() -> None:
    """Skip the test where there is no engine; where one has been promised (WEFT_CI_DOCKER=1), fail it."""
    _need(why_no_engine())


def need_images(*names: str) -> None:
    """The same for an engine that has these images: none of them can be pulled, `deploy/local-images` makes them."""
    need_engine()
    engine = docker.from_env(timeout=ENGINE_SECONDS_MAX)
    try:
        missing = [name for name in names if not engine.images.list(name=name)]
    except (docker.errors.DockerException, OSError) as error:
        skip_unless_promised(f"no Docker engine answers: {error}")
    finally:
        engine.close()
    _need(f"no image {', '.join(missing)} (deploy/local-images makes it)" if missing else None)


def need_compose() -> None:
    """The same for `docker compose`: the client may be absent, or have no such plugin. No engine is asked."""
    _need(why_no_compose())


def need_container(name: str, error: Exception) -> NoReturn:
    """A container of `name` did not start: skip the test; where an engine has been promised, fail it."""
    if os.environ.get("WEFT_CI_DOCKER") == "1":
        raise error
    response = getattr(error, "response", None)
    if response is not None and "/images/" in response.url:
        pytest.skip(f"no image of {name}, and none to be had (deploy/local-images makes one)")
    pytest.skip(f"no Docker engine that can run {name}: {error}")


def why_no_engine() -> str | None:
    """Asked without the Docker client, which leaves its socket open when nobody answers."""
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    parts = urlsplit(host)
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(PROBE_SECONDS_MAX)
                probe.connect(parts.path)
        elif parts.hostname and parts.port:
            socket.create_connection((parts.hostname, parts.port), timeout=PROBE_SECONDS_MAX).close()
    except OSError as error:
        return f"no Docker engine at {host}: {error.strerror or error}"
    return None  # An address of another kind, such as ssh: its client reports what is wrong.


def why_no_compose() -> str | None:
    """A client without the plugin takes the options of `compose` for its own, and complains of those."""
    command = ["docker", "compose", "version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CLIENT_SECONDS_MAX)
    except OSError as error:
        return f"no Docker client here: {error.strerror}"
    return f"no Compose here: {done.stderr.strip()}" if done.returncode else None


def _need(why_not: str | None) -> None:
    if why_not is not None:
        skip_unless_promised(why_not)


def skip_unless_promised(reason: str) -> NoReturn:
    if os.environ.get("WEFT_CI_DOCKER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
