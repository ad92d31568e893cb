"""Whether a Docker engine answers here."""

import os
import socket
from typing import NoReturn

import pytest


def need_engine() -> None:
    """Skip the test where there is no engine; where one has been promised (WEFT_CI_DOCKER=1), fail it."""
    if (reason := _why_not()) is None:
        return
    if os.environ.get("WEFT_CI_DOCKER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def need_container(name: str, error: Exception) -> NoReturn:
    """A container of `name` did not start: skip the test; where an engine has been promised, fail it."""
    if os.environ.get("WEFT_CI_DOCKER") == "1":
        raise error
    response = getattr(error, "response", None)
    if response is not None and "/images/" in response.url:
        pytest.skip(f"no image of {name}, and none to be had (deploy/local-images makes one)")
    pytest.skip(f"no Docker engine that can run {name}: {error}")


def _why_not() -> str | None:
    """Asked without the Docker client, which leaves its socket open when nobody answers."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not host.startswith("unix://"):
        return None  # Somewhere else: its client will tell.
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            probe.connect(host.removeprefix("unix://"))
    except OSError as error:
        return f"no Docker engine at {host}: {error.strerror}"
    return None
