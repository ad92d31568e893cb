"""`weft image push`: the name in the registry, where that is, and the engine's configuration for one push."""

import base64
import json
from pathlib import Path

import pytest

from weftd.cli.admin.image import _host, _stored_name, _write_config
from weftd.cli.cli_error import CliError

PREFIX = "weft.internal/vision/"


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("train", "train:latest"),
        ("team/train:7", "team/train:7"),
        ("ghcr.io/team/train:7", "team/train:7"),
        ("localhost/train", "train:latest"),
        ("localhost:5000/train:7", "train:7"),
        ("weft.internal/vision/train:7", "vision/train:7"),
    ],
)
def test_an_image_is_stored_below_the_tenant_without_its_host(name: str, stored: str) -> None:
    assert _stored_name(name, PREFIX) == f"{PREFIX}{stored}"


@pytest.mark.parametrize("name", ["", "Train", "--help", "a b", f"train@sha256:{'0' * 64}", "a/../b", "ghcr.io/", "x:"])
def test_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(CliError, match="expected the name of an image"):
        _stored_name(name, PREFIX)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://127.0.0.1:8470", "127.0.0.1:8470"),
        ("https://weft.example.org", "weft.example.org:443"),
        ("http://gateway", "gateway:80"),
        ("http://[::1]:8470/", "[::1]:8470"),
    ],
)
def test_the_engine_is_sent_to_the_gateway(url: str, host: str) -> None:
    assert _host(url) == host


def test_the_engines_client_keeps_its_context_and_gets_no_password_but_this_token(tmp_path: Path) -> None:
    own, made = tmp_path / "own", tmp_path / "made"
    (own / "contexts").mkdir(parents=True)
    made.mkdir()
    (own / "config.json").write_text(json.dumps({"currentContext": "lab", "auths": {"other": {}}, "credsStore": "x"}))
    _write_config(made, "gateway:8470", "weft_token", {"DOCKER_CONFIG": str(own)})
    auth = base64.b64encode(b"weft:weft_token").decode()
    file = made / "config.json"
    assert json.loads(file.read_text()) == {"auths": {"gateway:8470": {"auth": auth}}, "currentContext": "lab"}
    assert file.stat().st_mode & 0o077 == 0
    assert (made / "contexts").resolve() == own / "contexts"


@pytest.mark.parametrize("written", ["", "[]", "{", '{"currentContext": null}'])
def test_a_configuration_that_is_none_is_no_obstacle(tmp_path: Path, written: str) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "made").mkdir()
    (tmp_path / "own" / "config.json").write_text(written)
    _write_config(tmp_path / "made", "gateway:8470", "t", {"DOCKER_CONFIG": str(tmp_path / "own")})
    assert json.loads((tmp_path / "made" / "config.json").read_text()).keys() == {"auths"}
