"""Credentials are made once, kept, private, and give each user the least it needs."""

import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weft.credentials import Credentials, CredentialsError, inbox_prefix, permissions_by_user, provision

NODES = ["node-1", "node-2"]


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_user_and_role_has_a_secret_of_its_own(tmp_path: Path) -> None:
    credentials = provision(tmp_path / "credentials", nodes=NODES)
    users = permissions_by_user(NODES)
    found = [credentials.admin_token()]
    found += [credentials.nats_password(user) for user in users]
    found += [
        credentials.postgres_password(role) for role in ("owner", "gateway", "scheduler", "scorer", "reallocator")
    ]
    assert len(set(found)) == len(found)
    assert all(len(secret) >= 43 for secret in found)
    assert re.fullmatch(r"weft_[A-Za-z0-9_-]{43}", credentials.admin_token())
    assert {"executor-node-1", "telemetry-node-1", "gateway", "operator", "integrator", "provisioner"} <= users.keys()


def test_provisioning_again_changes_nothing(tmp_path: Path) -> None:
    provision(tmp_path, nodes=NODES)
    before = contents(tmp_path)
    provision(tmp_path, nodes=NODES)
    assert contents(tmp_path) == before


def test_a_node_added_later_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    provision(tmp_path, nodes=NODES)
    before = contents(tmp_path)
    credentials = provision(tmp_path, nodes=["node-3"])
    after = contents(tmp_path)
    assert credentials.nodes() == ["node-1", "node-2", "node-3"]
    assert {name: after[name] for name in before if name != "nats-users.conf"} == {
        name: text for name, text in before.items() if name != "nats-users.conf"
    }
    assert '"executor-node-1"' in after["nats-users.conf"]
    assert '"executor-node-3"' in after["nats-users.conf"]


def test_only_the_owner_can_read_the_secrets(tmp_path: Path) -> None:
    credentials = provision(tmp_path / "credentials", nodes=NODES)
    paths = list(credentials.folder.rglob("*"))
    assert mode(credentials.folder) == 0o700
    assert {mode(path) for path in paths if path.is_dir()} == {0o700}
    assert {mode(path) for path in paths if path.is_file()} == {0o600}


def test_a_container_volume_can_be_readable_and_private_again(tmp_path: Path) -> None:
    credentials = provision(tmp_path / "credentials", nodes=NODES, mode=0o644)
    assert mode(credentials.folder) == 0o755
    assert {mode(path) for path in credentials.folder.rglob("*") if path.is_file()} == {0o644}
    provision(credentials.folder, nodes=[])
    assert {mode(path) for path in credentials.folder.rglob("*") if path.is_file()} == {0o600}


def test_a_folder_made_by_someone_else_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    provision(tmp_path, nodes=[])
    assert mode(tmp_path) == 0o750


@pytest.mark.parametrize("node", ["", "-a", "a-", "A", "a.b", "a*", "a b", ">", "é", "a\n", "a" * 41])
def test_what_is_not_a_node_id_is_refused_before_anything_is_written(tmp_path: Path, node: str) -> None:
    with pytest.raises(ValueError, match="not a node id"):
        provision(tmp_path / "credentials", nodes=["node-1", node])
    assert not (tmp_path / "credentials").exists()


@pytest.mark.parametrize("node", ["a", "7", "a-b", "a" * 40, "node-1"])
def test_a_node_id_is_accepted(tmp_path: Path, node: str) -> None:
    assert provision(tmp_path, nodes=[node]).nodes() == [node]


def test_those_who_provision_at_once_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: provision(tmp_path / "c", nodes=[f"node-{number}"]), range(8)))
    users_file = made[0].nats_users_file.read_text()
    for number in range(8):
        assert made[0].nats_password(f"executor-node-{number}") in users_file
    assert len({credentials.admin_token() for credentials in made}) == 1


def test_a_secret_that_is_missing_or_empty_says_which(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="admin-token"):
        Credentials(tmp_path).admin_token()
    (tmp_path / "admin-token").touch()
    with pytest.raises(CredentialsError, match="is empty"):
        Credentials(tmp_path).admin_token()


def test_an_empty_secret_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "admin-token").touch()
    assert provision(tmp_path, nodes=[]).admin_token().startswith("weft_")


def test_no_node_may_speak_as_another() -> None:
    for user, may in permissions_by_user(NODES).items():
        if user.endswith("-node-1"):
            heard = set(may.subscribe) - {"weft.serving.*", "weft.speeds"}  # which are for every node
            heard = {subject.removesuffix(".*") for subject in heard}  # whatever is asked of sessions on this node
            assert all(subject.split(".")[-1] == "node-1" for subject in (*may.publish, *heard))


def test_no_user_may_hear_the_replies_of_another() -> None:
    users = permissions_by_user([*NODES, "node"])
    for user, may in users.items():
        inboxes = [subject for subject in may.subscribe if subject.startswith("_INBOX")]
        assert inboxes == (["_INBOX.>"] if user == "integrator" else [])  # nobody else's replies go there
        others = [inbox_prefix(other) + "." for other in users if other != user]
        assert not any((inbox_prefix(user) + ".").startswith(other) for other in others)


def test_only_the_scheduler_says_what_happened() -> None:
    speakers = [user for user, may in permissions_by_user(NODES).items() if "weft.events.>" in may.publish]
    assert speakers == ["scheduler"]


def test_servers_of_one_nats_cluster_share_a_password_that_stays(tmp_path: Path) -> None:
    credentials = provision(tmp_path, nodes=[], nats_servers=["nats-1", "nats-2:7222", "10.0.0.3"])
    password = (tmp_path / "nats-route").read_text().strip()
    routes = credentials.nats_routes_file.read_text()
    for address in ("nats-1:6222", "nats-2:7222", "10.0.0.3:6222"):
        assert f'"nats-route://route:{password}@{address}"' in routes
    assert f'user: route, password: "{password}"' in routes
    assert mode(credentials.nats_routes_file) == 0o600
    provision(tmp_path, nodes=["node-3"])
    assert credentials.nats_routes_file.read_text() == routes


@pytest.mark.parametrize(
    "server", ["", "nats 1", 'nats-1"', "nats-1:0", "nats-1:70000", "-", "a}", "nats-1\n}", "nats://nats-1", "x" * 300]
)
def test_what_is_no_address_of_a_server_is_refused_before_anything_is_written(tmp_path: Path, server: str) -> None:
    with pytest.raises(ValueError, match="not the address of a NATS server"):
        provision(tmp_path / "credentials", nodes=[], nats_servers=["nats-1", server])
    assert not (tmp_path / "credentials").exists()
