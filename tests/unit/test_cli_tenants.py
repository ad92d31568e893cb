"""Tenants, their tokens, their accounts and their webhooks, by the command line."""

import json
import time
from typing import Any

import msgspec
import pytest

from tests.support.told_gateway import ToldGateway, weft
from tests.support.views import NOW
from weft.messages.accounts import AccountRow, CapacityView, UsageGrouping
from weft.messages.http.tenants import TenantsView, TenantView, TokenMade, TokensRevoked, TokensView, TokenView
from weft.messages.series import UsageView
from weft.messages.webhooks import WebhookMade, WebhooksView, WebhookView

Said = pytest.CaptureFixture[str]


async def test_a_token_is_made_and_printed_alone(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/tokens"] = TokenMade(token="weft_x", tenant="bob", label="ci")
    assert await weft(gateway, "token", "make", "bob", "--label", "ci") == 0
    assert capsys.readouterr().out == "weft_x\n"
    gateway.answers["DELETE /v1/tokens/bob/ci"] = TokensRevoked(revoked=1)
    assert await weft(gateway, "token", "revoke", "bob", "--label", "ci") == 0
    assert capsys.readouterr().out == "1 token revoked\n"


def alices(**fields: Any) -> TenantView:
    usual: dict[str, Any] = {
        "id": "alice",
        "created_at": time.time() - 120,
        "jobs_open": 3,
        "jobs_open_max": 1000,
        "spec_bytes": 1536,
        "spec_bytes_max": 64 << 20,
        "priority_max": 100,
        "may_be_unpreemptible": False,
        "idle_seconds_max": 0,
        "chosen": ("jobs_open_max",),
    }
    return TenantView(**usual | fields)


async def test_tenants_are_listed_with_what_they_have_taken(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/tenants"] = TenantsView(tenants=(alices(),))
    assert await weft(gateway, "tenant", "list") == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split() == [
        "alice",
        "3",
        "of",
        "1000",
        "*",
        "1.5KiB",
        "of",
        "64MiB",
        "to",
        "100",
        "no",
        "–",
        "2m",
        "ago",
    ]
    gateway.answers["GET /v1/tenants"] = TenantsView(tenants=(alices(idle_seconds_max=8 * 3600),))
    assert await weft(gateway, "tenant", "list") == 0
    assert "8h0m" in capsys.readouterr().out


async def test_what_a_tenant_may_take_is_changed_by_what_was_given_alone(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["PATCH /v1/tenants/alice"] = alices()
    typed = ("--jobs-open", "1000", "--spec-bytes", "1MiB", "--priority", "default", "--unpreemptible", "yes")
    typed += ("--idle-stop", "8h")
    assert await weft(gateway, "tenant", "set", "alice", *typed) == 0
    assert json.loads(gateway.bodies[0]) == {
        "jobs_open_max": 1000,
        "spec_bytes_max": 1 << 20,
        "priority_max": None,
        "may_be_unpreemptible": True,
        "idle_seconds_max": 28_800,
    }
    assert "alice" in capsys.readouterr().out
    for wrong in (
        (),
        ("--jobs-open", "many"),
        ("--spec-bytes", "4G"),
        ("--unpreemptible", "maybe"),
        ("--idle-stop", "never"),
    ):
        assert await weft(gateway, "tenant", "set", "alice", *wrong) == 2
    assert len(gateway.bodies) == 1


async def test_a_token_may_end_by_itself(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/tokens"] = TokenMade(token="weft_x", tenant="bob", label="ci", expires_at=NOW)
    assert await weft(gateway, "token", "create", "bob", "--label", "ci", "--expires", "30d") == 0
    assert capsys.readouterr().out == "weft_x\n"
    assert json.loads(gateway.bodies[-1]) == {"tenant": "bob", "label": "ci", "admin": False, "expires_in": 2592000}
    asked = len(gateway.asked)
    for wrong in ("soon", "0s", "11000d"):
        with pytest.raises(SystemExit):
            await weft(gateway, "token", "create", "bob", "--expires", wrong)
        assert "--expires" in capsys.readouterr().err
    assert len(gateway.asked) == asked


async def test_tokens_are_listed_with_when_they_were_used_and_when_they_end(gateway: ToldGateway, capsys: Said) -> None:
    def token(label: str, **fields: Any) -> TokenView:
        return TokenView(**{"tenant": "bob", "label": label, "admin": False, "in_force": True, **fields})

    now = time.time()
    gateway.answers["GET /v1/tokens"] = TokensView(
        tokens=(
            token("ci", created_at=now - 120, used_at=now - 30, expires_at=now + 7200.9),
            token("boss", created_at=now - 120, admin=True),
            token("old", created_at=now - 9 * 86400, in_force=False, revoked_at=now - 60),
            token("short", created_at=now - 9 * 86400, in_force=False, expires_at=now - 61),
        )
    )
    assert await weft(gateway, "token", "list", "bob", "--all") == 0
    assert gateway.asked == ["GET /v1/tokens?tenant=bob&all=1"]
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["TENANT", "LABEL", "MAY", "STATE", "CREATED", "USED", "EXPIRES"],
        ["bob", "ci", "its own jobs", "in force", "2m ago", "30s ago", "in 2h0m"],
        ["bob", "boss", "everything", "in force", "2m ago", "never", "never"],
        ["bob", "old", "its own jobs", "revoked", "9d ago", "never", "never"],
        ["bob", "short", "its own jobs", "expired", "9d ago", "never", "1m ago"],
    ]
    assert await weft(gateway, "token", "list", "--json") == 0
    assert gateway.asked[-1] == "GET /v1/tokens"
    assert len(json.loads(capsys.readouterr().out)["tokens"]) == 4


ACCOUNT = UsageView(
    begins=NOW - 3600,
    ends=NOW,
    step_seconds=3600.0,
    gpu_seconds=28_800.0,
    gpu_seconds_idle=21_600.0,
    by=UsageGrouping.TENANT,
    total=AccountRow(key="total", gpu_seconds_held=7200.0, cost="4.980000", jobs=2),
    rows=(
        AccountRow(
            key="alice",
            gpu_seconds_held=7200.0,
            gpu_seconds_used=3600.0,
            gpu_seconds_unused=1800.0,
            lost_moved=360.0,
            jobs=2,
        ),
    ),
    capacity=(
        CapacityView(capacity=28_800.0, held=7200.0, idle=21_600.0, planned=0.0, drained=0.0, down=0.0),
        CapacityView(pool="default", capacity=28_800.0, held=7200.0, idle=21_600.0, planned=0.0, drained=0.0, down=0.0),
    ),
    currency="EUR",
)


async def test_usage_is_shown_in_hours_with_what_is_not_known(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/usage"] = ACCOUNT
    assert await weft(gateway, "usage", "--since", "1h") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [
        ["TENANT", "GPU", "HOURS", "USED", "UNUSED", "LOST", "EUR", "JOBS"],
        ["alice", "2.000", "1.000", "0.500", "0.100", "unknown", "2"],
        ["total", "2.000", "unknown", "unknown", "0.000", "4.98", "2"],
    ]
    assert lines[-1] == ["default", "2.000", "6.000", "0.000", "0.000", "0.000", "8.000"]


async def test_benchmarks_are_one_row_of_the_usage_by_job_and_money_is_in_cents(
    gateway: ToldGateway, capsys: Said
) -> None:
    def row(key: str, name: str, tenant: str, cost: str) -> AccountRow:
        return AccountRow(key=key, name=name, tenant=tenant, gpu_seconds_held=3600.0, cost=cost, jobs=1)

    rows = (
        row("j-1", "bench-node-1-0", "weft", "1.000001"),
        row("j-2", "train", "alice", "9.167076"),
        row("j-3", "bench-node-1-1", "weft", "0.001"),
        row("j-4", "short", "alice", "0.000400"),
    )
    gateway.answers["GET /v1/usage"] = msgspec.structs.replace(ACCOUNT, by=UsageGrouping.JOB, rows=rows)
    assert await weft(gateway, "usage", "--by", "job") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:4] == [
        ["j-2", "train", "1.000", "unknown", "unknown", "0.000", "9.17", "1"],
        ["j-4", "short", "1.000", "unknown", "unknown", "0.000", "<0.01", "1"],
        ["benchmarks", "of", "GPUs,", "by", "Weft", "2.000", "unknown", "unknown", "0.000", "1.00", "2"],
    ]


async def test_the_days_of_a_usage_say_their_zone(gateway: ToldGateway, capsys: Said) -> None:
    rows = (AccountRow(key="2023-11-14", gpu_seconds_held=3600.0),)
    gateway.answers["GET /v1/usage"] = msgspec.structs.replace(ACCOUNT, by=UsageGrouping.DAY, rows=rows)
    assert await weft(gateway, "usage", "--by", "day") == 0
    assert capsys.readouterr().out.startswith("DAY (UTC)")


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        (["--by", "user"], "--by"),
        (["--by", "label"], "--by"),
        (["--by", "job:x"], "--by"),
        (["--since", "soon"], "--since"),
        (["--since", "1h", "--until", "2h"], "--until"),
        (["--csv", "--json"], "one of"),
    ],
)
async def test_a_usage_that_makes_no_sense_is_refused(
    gateway: ToldGateway, capsys: Said, typed: list[str], field: str
) -> None:
    assert await weft(gateway, "usage", *typed) == 2
    assert field in capsys.readouterr().err
    assert gateway.asked == []


async def test_a_webhook_is_made_with_its_secret_and_listed_without(gateway: ToldGateway, capsys: Said) -> None:
    view = WebhookView(
        id="w-1", tenant="alice", url="https://example.org/", events=("failed",), all_tenants=False, created_at=NOW
    )
    gateway.answers["POST /v1/webhooks"] = WebhookMade(webhook=view, secret="whsec_eA==")
    gateway.answers["GET /v1/webhooks"] = WebhooksView(webhooks=(view,))
    assert await weft(gateway, "webhook", "add", "https://example.org/", "--events", "fail, begin") == 0
    assert json.loads(gateway.bodies[0])["url"] == "https://example.org/"
    assert capsys.readouterr().out == "id      w-1\nsecret  whsec_eA==\n"
    assert json.loads(gateway.bodies[0])["events"] == ["fail", "begin"]
    assert await weft(gateway, "webhook", "list") == 0
    assert "whsec" not in capsys.readouterr().out
