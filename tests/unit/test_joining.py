"""Join tokens, and the folder of a node that joined: what they keep to themselves, and what they refuse."""

import base64
import stat
from pathlib import Path

import pytest
from msgspec import structs

from weft.credentials.joining import JoiningError, NodeCredentials, hash_of, new_token, token_of
from weftd.cli.cluster.node import join_command
from weftd.cli.local import AlreadyRunsError, LocalError
from weftd.cli.local.joined import JoinedHome, compose_files, services

CREDENTIALS = NodeCredentials(
    node_id="node-3", pool="default", nats_url="nats://10.0.0.5:4222", executor_password="e", telemetry_password="t"
)


def test_credentials_are_opened_by_the_token_that_sealed_them_and_for_that_node_alone() -> None:
    token = new_token()
    sealed = token.seal(CREDENTIALS)
    assert token_of(token.text).open(sealed, node_id="node-3") == CREDENTIALS
    raw = bytearray(base64.b64decode(sealed))
    raw[-1] ^= 1
    changed = base64.b64encode(raw).decode()
    for other, answer, node in (
        (new_token(), sealed, "node-3"),
        (token, sealed, "node-4"),
        (token, changed, "node-3"),
        (token, "", "node-3"),
        (token, "no base64", "node-3"),
    ):
        with pytest.raises(JoiningError, match="not sealed for this token and this node"):
            other.open(answer, node_id=node)


def test_the_parts_of_a_token_that_others_get_do_not_tell_it() -> None:
    token = new_token()
    for told in (token.public_part, hash_of(token.public_part).hex(), repr(token), token.seal(CREDENTIALS)):
        assert token.text not in told
        assert token.text.removeprefix("join_") not in told
    assert len({new_token().public_part for _ in range(100)}) == 100


@pytest.mark.parametrize("text", ["", "join_", "weft_" + "a" * 43, "join_" + "a" * 42, "join_" + "a" * 44, "join_é"])
def test_what_is_no_join_token_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(JoiningError, match="what was given is no join token") as refused:
        token_of(text)
    assert len(text) < 10 or text not in str(refused.value)


def test_a_joined_node_keeps_its_credentials_to_its_user_and_runs_once(tmp_path: Path) -> None:
    home = JoinedHome(tmp_path / "joined")
    home.make()
    assert home.credentials() is None
    with home.taken(), pytest.raises(AlreadyRunsError, match="runs already"), home.taken():
        pass
    home.keep(structs.replace(CREDENTIALS, nats_ca="PEM"))
    assert home.credentials() == structs.replace(CREDENTIALS, nats_ca="PEM")
    assert (home.root / "executor").read_text() == "e\n"
    assert {stat.S_IMODE(file.stat().st_mode) for file in home.root.iterdir()} == {0o600}
    (home.root / "node.json").write_text("{")
    with pytest.raises(LocalError, match="is not what `weft node join` wrote"):
        home.credentials()


def test_settings_of_the_environment_count_but_for_those_that_make_it_this_node(tmp_path: Path) -> None:
    environment = {
        "EXECUTOR_RUNTIME": "docker",
        "EXECUTOR_CHECKPOINTS": "/shared",
        "EXECUTOR_NODE_ID": "other",
        "WEFT_NATS_URL": "nats://other:4222",
    }
    executor, telemetry = services(JoinedHome(tmp_path), CREDENTIALS, environment, address="10.0.0.6", emulated_gpus=2)
    assert executor.settings["EXECUTOR_RUNTIME"] == "docker"
    assert executor.settings["EXECUTOR_CHECKPOINTS"] == "/shared"
    assert executor.settings["EXECUTOR_NODE_ID"] == "node-3"
    assert executor.settings["EXECUTOR_ADDRESS"] == "10.0.0.6"
    assert executor.settings["WEFT_NATS_URL"] == "nats://10.0.0.5:4222"
    assert telemetry.settings["TELEMETRY_EMULATED_GPUS"] == "2"
    assert (telemetry.settings["WEFT_NATS_USER"], telemetry.settings["WEFT_NATS_CA_FILE"]) == ("telemetry-node-3", "")


def test_the_files_for_compose_are_those_of_deploy_with_settings_that_no_value_can_leave(tmp_path: Path) -> None:
    home = JoinedHome(tmp_path)
    how = {"address": "10.0.0.6", "image": "weft:local", "emulated_gpus": 0}
    compose_files(home, CREDENTIALS, **how)
    lines = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines())
    assert lines["WEFT_NODE"] == "node-3"
    assert lines["WEFT_SECRETS"] == str(tmp_path)
    assert "WEFT_NATS_CA_FILE" not in lines
    deployed = Path(__file__).parents[2] / "deploy" / "compose.node.yml"
    assert (tmp_path / "compose.yml").read_text() == deployed.read_text()
    for given in ({"image": "a\nWEFT_HOME=/"}, {"address": "$(id)"}, {"image": ""}):
        with pytest.raises(LocalError, match="which no file of settings can have"):
            compose_files(home, CREDENTIALS, **{**how, **given})


def test_the_printed_command_is_one_line_that_a_shell_reads_as_it_is_meant() -> None:
    assert join_command("node-3", "http://10.0.0.5:8470", "join_x", image="") == (
        "weft node join node-3 --gateway http://10.0.0.5:8470 --token join_x"
    )
    command = join_command("node-3", "http://10.0.0.5:8470", "join_x", image="weft:1 2")
    assert "'weft:1 2' weft node join node-3" in command
    assert command.endswith("docker compose --file /etc/weft/node-3/compose.yml up --detach --wait")
    assert "\n" not in command
