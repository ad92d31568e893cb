"""What a server, or a file of others, says steers no terminal, whichever command prints it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.support.hostile import HOSTILE, hostile, steering
from tests.support.told_gateway import ToldGateway, weft
from weft.domain.job import JobState
from weft.messages.http import (
    Accepted,
    ArraysView,
    ClusterView,
    EventView,
    GpusView,
    JobsView,
    JobView,
    NodesView,
    Submitted,
)
from weft.messages.http.explanation import Explanation
from weft.messages.http.quotas import QuotaDeleted, QuotasView, QuotaView
from weft.messages.http.services import EndpointsView
from weft.messages.http.tenants import TenantsView, TenantView, TokenMade, TokensView
from weft.messages.images import ImageDeleted, ImagesView
from weft.messages.secrets import SecretDeleted, SecretsView, SecretView
from weft.messages.series import UsageView
from weft.messages.webhooks import WebhookMade, WebhooksView, WebhookView
from weft.messages.whatif import WhatIfView
from weftd.cli import page
from weftd.cli.__main__ import main

JOB = "/v1/jobs/j-1"
ANSWERS: dict[str, Any] = {
    "GET /v1/jobs": JobsView,
    f"GET {JOB}": JobView,
    f"GET {JOB}/events": [EventView],
    "GET /v1/events": [EventView],
    f"GET {JOB}/explain": Explanation,
    f"GET {JOB}/endpoints": EndpointsView,
    "GET /v1/arrays": ArraysView,
    "GET /v1/nodes": NodesView,
    "GET /v1/gpus": GpusView,
    "GET /v1/cluster": ClusterView,
    "GET /v1/usage": UsageView,
    "GET /v1/quotas": QuotasView,
    "PUT /v1/quotas/a": QuotaView,
    "DELETE /v1/quotas/a": QuotaDeleted,
    "GET /v1/secrets": SecretsView,
    "PUT /v1/secrets/a": SecretView,
    "DELETE /v1/secrets/a": SecretDeleted,
    "GET /v1/tokens": TokensView,
    "POST /v1/tokens": TokenMade,
    "GET /v1/tenants": TenantsView,
    "PATCH /v1/tenants/a": TenantView,
    "GET /v1/webhooks": WebhooksView,
    "POST /v1/webhooks": WebhookMade,
    "POST /v1/webhooks/w-1/on": WebhookView,
    "GET /v1/images": ImagesView,
    "DELETE /v1/images": ImageDeleted,
    "POST /v1/what-if": WhatIfView,
    "POST /v1/jobs": Submitted,
    f"POST {JOB}/cancel": Accepted,
    f"POST {JOB}/requeue": Accepted,
    f"POST {JOB}/priority": Accepted,
    f"POST {JOB}/scale": Accepted,
    f"POST {JOB}/share": Accepted,
    f"POST {JOB}/update": Accepted,
    "POST /v1/nodes/a/drain": Accepted,
    "PATCH /v1/nodes/a": Accepted,
}
COMMANDS = [
    "ps", "ps -a", "nodes", "nodes --gpus", "nodes --topology", "gpus", "describe", "describe j-1",
    "explain j-1", "events", "events j-1", "usage", "usage --by job", "usage --by label:a",
    "quota list", "quota set a --weight 1", "quota delete a",
    "secret list", "secret delete a", "token list", "token create a", "tenant list", "tenant set a --jobs-open 1",
    "webhook list", "webhook add https://example.org/", "webhook on w-1", "image list", "image delete a", "top --once",
    "endpoints j-1", "open j-1", "what-if --order fifo", "cancel j-1", "requeue j-1", "priority j-1 1",
    "scale j-1 worker=2", "share j-1 --request 0.5", "update j-1 --image b", "drain a", "label a b=c", "taint a b-",
    "run -- true", "wait j-1", "logs j-1", "logs j-1 --rank all",
]  # fmt: skip


class Terminal(io.TextIOWrapper):
    """A stream that says that it is a terminal, and keeps what is printed."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def printed(self) -> str:
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode()


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """In place of the streams that a test has; from its body, as pytest sets its own after the fixtures."""
    made = Terminal()
    monkeypatch.setattr("sys.stdout", made)
    monkeypatch.setattr("sys.stderr", made)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    return made


def tell_all(gateway: ToldGateway) -> None:
    for what, kind in ANSWERS.items():
        gateway.answers[what] = [hostile(kind[0])] if isinstance(kind, list) else hostile(kind)
    job = hostile(JobView)
    gateway.answers[f"GET {JOB}"] = structs.replace(job, id="j-1", state=JobState.SUCCEEDED)
    gateway.answers[f"GET {JOB}/logs"] = HOSTILE.encode()


@pytest.mark.parametrize("as_json", [False, True], ids=["page", "json"])
@pytest.mark.parametrize("typed", COMMANDS)
async def test_no_text_of_a_server_steers_the_terminal(
    gateway: ToldGateway, monkeypatch: pytest.MonkeyPatch, typed: str, as_json: bool
) -> None:
    tell_all(gateway)
    screen = terminal(monkeypatch)
    words, dashes, command = typed.partition(" --")
    status = await weft(gateway, *words.split(), *["--json"] * as_json, *f"{dashes}{command}".split())
    assert (status, steering(screen.printed)) == (0, set()), screen.printed


@pytest.mark.parametrize("typed", [typed for typed in COMMANDS if not typed.startswith("logs")])
async def test_no_text_of_a_server_is_in_a_pipe_with_what_would_steer_a_terminal(
    gateway: ToldGateway, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    tell_all(gateway)
    assert await weft(gateway, *typed.split()) == 0
    told = capsys.readouterr()
    assert (steering(told.out), steering(told.err)) == (set(), set())


@pytest.mark.parametrize("typed", ["usage --csv", "export"])
async def test_a_document_of_a_server_is_cleaned_on_a_terminal_alone(
    gateway: ToldGateway, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], typed: str
) -> None:
    gateway.answers["GET /v1/usage"] = gateway.answers["GET /v1/trace"] = f"id\r\n{HOSTILE}\r\n".encode()
    assert await weft(gateway, *typed.split()) == 0
    assert capfdbinary.readouterr().out == f"id\r\n{HOSTILE}\r\n".encode()
    screen = terminal(monkeypatch)
    assert await weft(gateway, *typed.split()) == 0
    assert steering(screen.printed) == set()


async def test_no_name_that_a_shell_completes_has_control_characters(
    gateway: ToldGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_all(gateway)
    for what in ("jobs", "nodes"):
        assert await weft(gateway, "completion", "--names", what) == 0
        told = capsys.readouterr().out
        assert (told[0], steering(told)) == ("a", set())


async def test_no_refusal_of_a_server_steers_the_terminal(
    gateway: ToldGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.refuse("GET /v1/nodes", 400, HOSTILE, HOSTILE)
    assert await weft(gateway, "nodes") == 1
    assert steering(capsys.readouterr().err) == set()


@pytest.mark.parametrize("typed", ["migrate-from slurm", "migrate-from determined", "submit", "simulate --trace"])
def test_no_text_of_a_file_steers_the_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str) -> None:
    lines = {
        "migrate-from slurm": f"#!/bin/bash\n#SBATCH --comment='{HOSTILE}'\n#SBATCH --odd={HOSTILE}\necho {HOSTILE}\n",
        "migrate-from determined": f'name: a\nentrypoint: ["{HOSTILE}"]\n',
        "submit": f"name: a\n{HOSTILE}: 1\n",
        "simulate --trace": f"id,arrival_s,gpus,work_s,tenant\n{HOSTILE},0,1,1,{HOSTILE}\n",
    }
    file = tmp_path / f"file{HOSTILE.replace('/', '')}.yaml"
    file.write_bytes(lines[typed].encode())
    screen = terminal(monkeypatch)
    main([*typed.split(), str(file)])
    assert (screen.printed != "", steering(screen.printed)) == (True, set())


def test_json_that_is_made_harmless_says_the_same() -> None:
    document = json.dumps({"é": f'{HOSTILE}\\"é', "b": ["\u2028", "漢"]}, ensure_ascii=False).encode()
    made = page.harmless(document)
    assert json.loads(made) == json.loads(document)
    assert steering(made.decode()) == set()
    assert "漢" in made.decode()
