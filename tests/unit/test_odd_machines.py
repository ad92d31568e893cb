"""What tests need of Docker is looked for before they begin: a machine may have no client, or one without Compose."""

from pathlib import Path

import pytest

from tests.support.engine import need_compose, need_engine, why_no_compose, why_no_engine

WITHOUT_COMPOSE = """#!/bin/sh
echo "unknown shorthand flag: 'f' in -f" >&2
exit 125
"""
WITH_COMPOSE = """#!/bin/sh
echo "Docker Compose version 2.26.1"
"""


def client(folder: Path, program: str) -> None:
    (folder / "docker").write_text(program)
    (folder / "docker").chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with programs; there is no engine."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.delenv("WEFT_CI_DOCKER", raising=False)
    return tmp_path


def test_a_test_that_needs_compose_is_skipped_where_there_is_no_client(machine: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="no Docker client"):
        need_compose()


def test_a_test_that_needs_compose_is_skipped_where_the_client_has_no_such_plugin(machine: Path) -> None:
    client(machine, WITHOUT_COMPOSE)
    with pytest.raises(pytest.skip.Exception, match="unknown shorthand flag"):
        need_compose()


def test_a_test_that_needs_compose_runs_where_the_client_has_it(machine: Path) -> None:
    client(machine, WITH_COMPOSE)
    assert why_no_compose() is None


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1"])
def test_a_test_that_needs_an_engine_is_skipped_where_none_answers(
    machine: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    assert why_no_engine() is not None
    with pytest.raises(pytest.skip.Exception, match="no Docker engine"):
        need_engine()


def test_where_an_engine_was_promised_its_absence_fails_the_test(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CI_DOCKER", "1")
    for need in (need_engine, need_compose):
        with pytest.raises(pytest.fail.Exception, match="no Docker"):
            need()
