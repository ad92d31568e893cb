"""Runs a process of a node as a container beside its own, with what the orchestrator's containers cannot have.

Swarm gives no container the processes or the control groups of its host; an executor, a guard and telemetry need them.
So their services run this program, which asks the host's engine for a second container: of the same image, with the
same environment, mounts and rights, and with the host's processes and control groups. It passes on what the process
writes, stops it when it is stopped itself, and ends with its status. The second container of a program that was killed
is replaced by the next one.

    python -m weftd.executor.beside executor --passwords /run/secrets/nodes -- python -m weftd.executor
"""

import argparse
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import requests.exceptions
from docker.errors import APIError, DockerException, NotFound

CALL_SECONDS_MAX = 15
FOLLOW_SECONDS_MAX = 24 * 3600  # between two lines; a quieter process is read by the engine alone
LOOK_SECONDS = 0.5
STOP_SECONDS = 110
MOUNTS = Path("/proc/self/mountinfo")
# The engine mounts `hostname` and others of the container's own folder, in every container.
OWN_FOLDER = re.compile(r"/containers/([0-9a-f]{64})/")


class BesideError(Exception):
    """Why there is no second container: a sentence for the log."""


def main() -> int:
    asked = _asked(sys.argv[1:])
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        client = docker.from_env(timeout=CALL_SECONDS_MAX).api
        own = client.inspect_container(own_container(MOUNTS.read_text()))
        environment = environment_of(own, client.info(), address_into=asked.address_into)
        if asked.passwords:
            give_password(Path(asked.passwords), environment)
        name = f"weft-beside-{asked.name}"
        _remove(client, name)
        made = _create(client, container(own, environment, asked.command, network=asked.network, name=asked.name), name)
        return _watch(client, made, stop)
    except (BesideError, DockerException, requests.exceptions.RequestException, OSError) as error:
        sys.stderr.write(f"beside: {error}\n")
        return 1


def _asked(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m weftd.executor.beside", description=__doc__)
    parser.add_argument("name", help="name of the process; one of each name runs on a host")
    parser.add_argument("--network", choices=("host", "none"), default="host")
    parser.add_argument(
        "--passwords", metavar="FILE", help="file of lines USER:PASSWORD; the line of WEFT_NATS_USER is used"
    )
    parser.add_argument(
        "--address-into", metavar="VARIABLE", help="file that gets the host's address in the swarm if it is empty"
    )
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    return parser.parse_args(words)


def own_container(mounts: str) -> str:
    """The id of the container that has this list of mounts. Raises BesideError."""
    found = OWN_FOLDER.search(mounts)
    if found is None:
        raise BesideError("this process is in no container of a Docker engine")
    return found.group(1)


def environment_of(own: Mapping[str, Any], info: Mapping[str, Any], *, address_into: str | None) -> dict[str, str]:
    """The environment of the own container. Raises BesideError."""
    pairs = (text.partition("=") for text in own["Config"]["Env"] or ())
    environment = {name: value for name, _, value in pairs}
    if address_into and not environment.get(address_into):
        address = (info.get("Swarm") or {}).get("NodeAddr", "")
        if not address:
            raise BesideError(f"{address_into}: empty, and this engine has no address in a swarm")
        environment[address_into] = address
    return environment


def give_password(passwords: Path, environment: Mapping[str, str]) -> None:
    """Write the password of WEFT_NATS_USER into WEFT_NATS_PASSWORD_FILE, for this user alone. Raises BesideError."""
    user, target = environment.get("WEFT_NATS_USER", ""), environment.get("WEFT_NATS_PASSWORD_FILE", "")
    if not user or not target:
        raise BesideError("--passwords: WEFT_NATS_USER and WEFT_NATS_PASSWORD_FILE must be set")
    known = dict(line.split(":", 1) for line in passwords.read_text().splitlines() if ":" in line)
    if not known.get(user):
        raise BesideError(f"{passwords} has no password for {user}: is this host in `weft setup --nodes`?")
    new = Path(f"{target}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(known[user])
    new.rename(target)


def container(
    own: Mapping[str, Any], environment: Mapping[str, str], command: Sequence[str], *, network: str, name: str
) -> dict[str, Any]:
    """The second container, as the engine's API takes it: the rights of the own one, and never more of the kernel's."""
    host = own["HostConfig"]
    return {
        "Image": own["Image"],
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Cmd": list(command),
        "User": own["Config"].get("User") or "",
        "Labels": {"weft.beside": name},
        "Healthcheck": {"Test": ["NONE"]},  # the first container's health is asked at the same port
        "HostConfig": {
            "PidMode": "host",
            "CgroupnsMode": "host",
            "NetworkMode": network,
            "ReadonlyRootfs": bool(host.get("ReadonlyRootfs")),
            "CapDrop": ["ALL"],
            "CapAdd": list(host.get("CapAdd") or ()),
            "SecurityOpt": ["no-new-privileges:true"],
            "Mounts": list(host.get("Mounts") or ()),
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "3"}},
            "RestartPolicy": {"Name": "no"},
        },
    }


def _create(client: docker.APIClient, configuration: dict[str, Any], name: str) -> str:
    """Returns the id. The SDK's own `create_container` takes other words for half of this."""
    made = client.create_container_from_config(configuration, name)  # type: ignore[no-untyped-call]
    return str(made["Id"])


def _watch(client: docker.APIClient, container_id: str, stop: threading.Event) -> int:
    """Start the container and return its exit status, once it ended by itself or was stopped."""
    try:
        if stop.is_set():
            return 0
        client.start(container_id)
        threading.Thread(target=_pass_on, args=(container_id,), daemon=True).start()
        while not stop.wait(LOOK_SECONDS):
            state = client.inspect_container(container_id)["State"]
            if not state["Running"]:
                return int(state["ExitCode"])
        client.stop(container_id, timeout=STOP_SECONDS)
        return int(client.inspect_container(container_id)["State"]["ExitCode"])
    finally:
        time.sleep(LOOK_SECONDS)  # for its last lines
        client.remove_container(container_id, force=True)


def _pass_on(container_id: str) -> None:
    """Pass on the output of the container until it ends."""
    try:
        reader = docker.from_env(timeout=FOLLOW_SECONDS_MAX).api
        for chunk in reader.logs(container_id, stream=True, follow=True):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    except (DockerException, requests.exceptions.RequestException, OSError, ValueError):
        pass  # The engine has the lines.


def _remove(client: docker.APIClient, name: str) -> None:
    """The second container of a program that was killed. It is stopped in order: an executor has things to keep."""
    try:
        client.stop(name, timeout=STOP_SECONDS)
        client.remove_container(name, force=True)
    except NotFound:
        pass
    except APIError as error:
        raise BesideError(f"the container {name} that is there already: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
