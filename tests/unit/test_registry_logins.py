"""Logins at registries: which registry an image means, and the form of the secret with a login there."""

import base64
import json

import pytest

from weft.messages.images import DOCKER_HUB, host_of, login_of, login_secret, login_text


@pytest.mark.parametrize(
    ("image", "host"),
    [
        ("busybox", "docker.io"),
        ("team/train:7", "docker.io"),
        ("docker.io/team/train", "docker.io"),
        ("ghcr.io/team/train:7", "ghcr.io"),
        ("localhost/train", "localhost"),
        ("127.0.0.1:5000/train@sha256:0", "127.0.0.1:5000"),
        ("registry:5000/train", "registry:5000"),
    ],
)
def test_an_image_names_the_host_of_its_registry_as_for_an_engine(image: str, host: str) -> None:
    assert host_of(image) == host


def test_each_registry_has_a_secret_that_a_job_could_name() -> None:
    assert login_secret("ghcr.io") == "registry-ghcr-io"
    assert login_secret("127.0.0.1:5000") == "registry-127-0-0-1-5000"


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    ("host", "auths"),
    [
        ("ghcr.io", {"ghcr.io": auth("me:pass:word")}),
        ("ghcr.io", {"https://ghcr.io": {"username": "me", "password": "pass:word"}}),
        ("docker.io", {f"https://index.{DOCKER_HUB}/v1/": auth("me:pass:word"), "ghcr.io": auth("other:one")}),
    ],
)
def test_a_login_has_the_form_that_docker_itself_writes(host: str, auths: dict[str, dict[str, str]]) -> None:
    text = json.dumps({"auths": auths, "credsStore": "desktop"})
    assert login_of(text, host) == ("me", "pass:word")
    assert login_of(login_text(host, "me", "pass:word"), host) == ("me", "pass:word")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hunter2", "not in the form of Docker's config.json"),
        ("{}", "not in the form of Docker's config.json"),
        (json.dumps({"auths": {"ghcr.io": {"auth": "hunter2!"}}}), "not in the form of Docker's config.json"),
        (json.dumps({"auths": {"ghcr.io": 7}}), "not in the form of Docker's config.json"),
        (json.dumps({"auths": {"quay.io": auth("me:hunter2")}}), "no login at ghcr.io"),
        (json.dumps({"auths": {"ghcr.io": {}}}), "lacks a user or a password"),  # a helper of Docker's keeps it
        (json.dumps({"auths": {"ghcr.io": auth("hunter2")}}), "lacks a user or a password"),
    ],
)
def test_a_secret_that_is_no_login_is_refused_without_being_shown(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        login_of(text, "ghcr.io")
    assert "hunter2" not in str(refused.value)
