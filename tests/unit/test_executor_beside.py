"""The container in which a node's process runs beside that of its Swarm service."""

import stat
from pathlib import Path
from typing import Any

import pytest

from weftd.executor.beside import BesideError, container, environment_of, give_password, own_container

ID = "ab" * 32
OWN: dict[str, Any] = {
    "Image": "sha256:1",
    "Config": {"Env": ["PATH=/bin", "EXECUTOR_ADDRESS=", "EXECUTOR_NODE_ID=host-2"], "User": "0:0"},
    "HostConfig": {
        "CapAdd": ["KILL"],
        "CapDrop": ["ALL"],
        "ReadonlyRootfs": True,
        "Mounts": [{"Type": "bind", "Source": "/var/lib/weft", "Target": "/var/lib/weft"}],
    },
}


def test_a_container_finds_itself_by_the_files_that_the_engine_mounts_into_it() -> None:
    mounts = f"1 2 254:0 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/vda rw\n"
    assert own_container(mounts) == ID
    with pytest.raises(BesideError, match="no container"):
        own_container("1 2 254:0 / / rw - ext4 /dev/vda rw\n")


def test_an_empty_address_becomes_that_of_the_host_in_the_swarm() -> None:
    swarm = {"Swarm": {"NodeAddr": "10.0.0.2"}}
    assert environment_of(OWN, swarm, address_into="EXECUTOR_ADDRESS")["EXECUTOR_ADDRESS"] == "10.0.0.2"
    assert environment_of(OWN, swarm, address_into=None)["EXECUTOR_ADDRESS"] == ""
    with pytest.raises(BesideError, match="EXECUTOR_ADDRESS: empty"):
        environment_of(OWN, {"Swarm": {"NodeAddr": ""}}, address_into="EXECUTOR_ADDRESS")


def test_the_second_container_has_the_mounts_and_rights_of_the_first_and_the_hosts_processes() -> None:
    made = container(OWN, {"A": "1"}, ["python"], network="host", name="executor")
    assert (made["Image"], made["Env"], made["Cmd"], made["User"]) == ("sha256:1", ["A=1"], ["python"], "0:0")
    host = made["HostConfig"]
    assert (host["PidMode"], host["CgroupnsMode"], host["NetworkMode"]) == ("host", "host", "host")
    assert (host["CapDrop"], host["CapAdd"], host["ReadonlyRootfs"]) == (["ALL"], ["KILL"], True)
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["Mounts"] == OWN["HostConfig"]["Mounts"]
    assert "Privileged" not in host
    assert made["Labels"] == {"weft.beside": "executor"}


def test_a_process_is_given_the_password_of_its_own_user_and_no_other(tmp_path: Path) -> None:
    passwords, target = tmp_path / "nodes", tmp_path / "password"
    passwords.write_text("executor-host-1:first\nexecutor-host-2:second\ntelemetry-host-2:third\n")
    asked = {"WEFT_NATS_USER": "executor-host-2", "WEFT_NATS_PASSWORD_FILE": str(target)}
    for _ in range(2):  # The second start finds the file of the first.
        give_password(passwords, asked)
        assert target.read_text() == "second"
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(BesideError, match="no password for executor-host-9"):
        give_password(passwords, {**asked, "WEFT_NATS_USER": "executor-host-9"})
    with pytest.raises(BesideError, match="WEFT_NATS_USER"):
        give_password(passwords, {})
