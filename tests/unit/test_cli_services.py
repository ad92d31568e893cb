"""The commands for services, from what is typed to what is sent, printed and returned; and what they refuse."""

import json
from typing import Any

import msgspec
import pytest

from tests.support.told_gateway import ToldGateway
from tests.support.told_services import JOB, endpoint, endpoints, weft
from tests.support.views import NOW, event_view, job_view
from weft.domain.job import Cause, CauseCode, JobState
from weft.domain.sizes import RoleSize
from weft.domain.spec import JobSpec, Kind, Objective
from weft.messages.asks import AskKind
from weft.messages.http import Accepted, JobsView, NodesView
from weft.messages.http.explanation import Explanation
from weft.messages.http.services import (
    LoanView,
    RequestsView,
    ServiceView,
    TokensView,
    UnreadyView,
    UpdateView,
)
from weftd.cli.__main__ import parse
from weftd.cli.cli_error import CliError
from weftd.cli.rendering.context import RenderContext
from weftd.cli.rendering.services import host, service_lines, service_short, tokens_text
from weftd.cli.spec import spec_of

Said = pytest.CaptureFixture[str]
UPDATED = Accepted(id=JOB, ask=AskKind.UPDATE, state="running")
LOOK = RenderContext(now=NOW, width=200, bars=False)


# update


async def test_update_sends_what_was_given_and_nothing_else(
    gateway: ToldGateway, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.answers[f"POST /v1/jobs/{JOB}/update"] = UPDATED
    monkeypatch.setenv("FROM_HERE", "x")
    typed = (JOB, "--env", "MODEL=big=er", "--env", "OLD=", "--env", "FROM_HERE", "--", "serve", "--model", "big")
    assert await weft(gateway, "update", *typed) == 0
    assert json.loads(gateway.bodies[-1]) == {
        "command": ["serve", "--model", "big"],
        "env": {"MODEL": "big=er", "OLD": "", "FROM_HERE": "x"},
    }
    assert capsys.readouterr().out == f"{JOB} will be updated replica by replica (it is running)\n"
    assert await weft(gateway, "update", JOB, "--image", "a:2") == 0
    assert json.loads(gateway.bodies[-1]) == {"image": "a:2"}


async def test_an_update_of_nothing_is_refused_and_nothing_is_sent(gateway: ToldGateway, capsys: Said) -> None:
    assert await weft(gateway, "update", JOB) == 2
    assert await weft(gateway, "update", JOB, "--env", "NOT_SET_ANYWHERE") == 1
    assert gateway.asked == []
    err = capsys.readouterr().err.splitlines()
    assert "no change is given" in err[0]
    assert err[1] == "weft: --env: NOT_SET_ANYWHERE is not set here: say NOT_SET_ANYWHERE=VALUE"


@pytest.mark.parametrize(
    ("field", "shown"),
    [("image", "--image: "), ("env.A", "--env: "), ("command[0]", "the command after --: "), ("", "")],
)
async def test_a_refused_update_names_the_option(gateway: ToldGateway, capsys: Said, field: str, shown: str) -> None:
    gateway.refuse(f"POST /v1/jobs/{JOB}/update", 400, field, "is not good")
    assert await weft(gateway, "update", JOB, "--image", "a") == 1
    assert capsys.readouterr().err == f"weft: {shown}is not good\n"


# endpoints and open


async def test_endpoints_lists_every_replica_and_the_url(gateway: ToldGateway, capsys: Said) -> None:
    endpoints(
        gateway,
        endpoint(0, ready=True, since=1.0),
        endpoint(3, draining=True, revision=2),
        endpoint(4, address="fe80::1"),
    )
    assert await weft(gateway, "endpoints", JOB) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["chat", JOB, f"{gateway.url}/s/{JOB}/"]
    assert [row.split()[:5] for row in rows] == [
        ["0", "ready", "10.0.0.1:4000", "node-1", "0"],
        ["3", "draining", "10.0.0.1:4003", "node-1", "2"],
        ["4", "starting", "[fe80::1]:4004", "node-1", "0"],
    ]


async def test_endpoints_and_open_print_json(gateway: ToldGateway, capsys: Said) -> None:
    view = endpoints(gateway, endpoint(0, ready=True))
    assert await weft(gateway, "endpoints", JOB, "--json") == 0
    assert capsys.readouterr().out == msgspec.json.encode(view).decode() + "\n"
    assert await weft(gateway, "open", JOB, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"url": f"{view.url}?weft_code=code_1"}


async def test_open_hands_a_one_time_code_over_unless_the_service_is_public(gateway: ToldGateway, capsys: Said) -> None:
    view = endpoints(gateway, endpoint(0, ready=True))
    assert await weft(gateway, "open", JOB) == 0
    assert capsys.readouterr().out == f"{view.url}?weft_code=code_1\n"
    assert gateway.bodies[-1] == b'{"job":"%s"}' % JOB.encode()
    assert await weft(gateway, "open") == 0
    assert capsys.readouterr().out == f"{gateway.url}/#code=code_1\n"
    assert gateway.bodies[-1] == b"{}"
    endpoints(gateway, token=False)
    assert await weft(gateway, "open", JOB) == 0
    said = capsys.readouterr()
    assert said.out == f"{view.url}\n"
    assert said.err == "note: no replica of chat is ready; its router waits for one\n"


@pytest.mark.parametrize("command", ["open", "call"])
async def test_without_a_router_the_setting_is_named(gateway: ToldGateway, capsys: Said, command: str) -> None:
    endpoints(gateway, url="")
    assert await weft(gateway, command, JOB) == 1
    assert "weft: this cluster has no router: GATEWAY_ROUTER_URL is not set" in capsys.readouterr().err


# run


def asked(*typed: str) -> JobSpec:
    return spec_of(parse("run", ["run", *typed, "--", "serve"]), cwd="/tmp", environment={})


def test_run_says_how_a_service_serves_and_what_it_promises() -> None:
    spec = asked(
        *("--kind", "inference", "--service-port", "8000", "--ready", "/healthz", "--concurrency", "4", "--public"),
        *("--objective-latency", "200ms", "--objective-rate", "50", "--objective-percentile", "95"),
        *("--replicas-min", "0", "--replicas-max", "4"),
    )
    assert spec.is_service
    assert spec.service is not None
    assert (spec.service.port, spec.service.ready, spec.service.concurrency, spec.service.public) == (
        8000,
        "/healthz",
        4,
        True,
    )
    assert spec.objective == Objective(latency="200ms", rate=50, percentile=95)
    assert (spec.roles["worker"].replicas.least, spec.roles["worker"].replicas.most) == (0, 4)
    assert asked().service is None
    assert asked("--kind", "inference", "--objective-latency", "1s", "--objective-rate", "1").is_service


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        (("--service-port", "70000", "--kind", "inference"), "--service-port"),
        (("--service-port", "8000"), "--service-port"),
        (("--ready", "healthz", "--kind", "inference"), "--ready"),
        (("--concurrency", "0", "--kind", "inference"), "--concurrency"),
        (("--objective-latency", "fast", "--objective-rate", "1", "--kind", "inference"), "--objective-latency"),
        (("--objective-rate", "0", "--objective-latency", "1s", "--kind", "inference"), "--objective-rate"),
        (("--objective-rate", "1", "--kind", "inference"), "--objective-latency"),
        (("--replicas-min", "0"), "--replicas-min"),
    ],
)
def test_a_wrong_option_of_a_service_is_named(typed: tuple[str, ...], field: str) -> None:
    with pytest.raises(CliError) as cli_error:
        asked(*typed)
    assert cli_error.value.field == field


# ps, describe, explain


def service(**fields: Any) -> ServiceView:
    return ServiceView(**{"wanted": 3, "granted": 3, "ready": 2, "least": 1, "most": 8, **fields})


REQUESTS = RequestsView(
    seconds=60.0,
    rate=41.23,
    rate_now=41.2,
    arrived=2474,
    late=30,
    in_flight=12,
    queued=3,
    p50=0.02,
    p99=0.12,
    objective=0.12,
)


def test_a_list_shows_ready_of_wanted_and_the_requests() -> None:
    assert service_short(service()) == "2/3 ready"
    assert service_short(service(requests=REQUESTS)) == "2/3 ready, 41.2/s, p99 120ms, 3 queued"
    assert service_short(service(wanted=0, granted=0, ready=0)) == "at zero"
    assert service_short(service(ready=None)) == "?/3 ready"
    updating = UpdateView(revision=2, replaced=1, replicas=3, since=NOW - 5)
    assert service_short(service(update=updating, kept=False)) == "2/3 ready, update 1/3, objective not kept"


def test_tokens_are_said_as_far_as_they_are_known() -> None:
    whole = TokensView(rate_in=820.2, rate_out=140.4, cached=0.64, ttft=0.31, tpot=0.022, waiting=3, kv_used=0.71)
    assert tokens_text(whole) == (
        "820/s in, 140/s out; first token 310ms, then 22ms each; 64 % of prompts cached; KV cache 71 % used,"
        " 3 wait in engines"
    )
    assert tokens_text(TokensView(rate_out=3.0)) == "0/s in, 3/s out"


def test_everything_about_a_service_is_said_in_words() -> None:
    view = service(
        granted=2,
        draining=1,
        url="http://127.0.0.1:8480/s/j-1/",
        public=True,
        update=UpdateView(revision=2, replaced=1, replicas=2, since=NOW - 5, back_to=1),
        requests=REQUESTS,
        objective=Objective(latency="100ms", rate=50, percentile=99),
        kept=False,
        unattainable="one request alone takes 0.3 s",
        unready=(UnreadyView(rank=1, why="it answers 404 for /healthz", since=NOW - 12), UnreadyView(rank=2, why="x")),
        sized_for=Cause(code=CauseCode.LOAD, sentence="41.2 requests/s need 3 replicas"),
        loans=(
            LoanView(lender="j-mnist", name="mnist", rank=3, gpus=1, ranks=1, since=NOW - 12),
            LoanView(lender="j-other", rank=4, gpus=0.5),
        ),
    )
    assert service_lines(view, LOOK) == [
        ("url", "http://127.0.0.1:8480/s/j-1/ (public)"),
        ("replicas", "2 of 3 (1 … 8), 2 ready, 1 finish their requests"),
        ("sized for", "load: 41.2 requests/s need 3 replicas"),
        (
            "update",
            "1 of 2 replicas run revision 2, asked for 5s ago; if none of it becomes ready, revision 1 comes back",
        ),
        (
            "requests",
            "41.2/s in the last 1m0s; 12 in flight, 3 queued; p50 20ms, p99 120ms to the first byte; 30 late",
        ),
        ("objective", "99 % within 100ms at 50/s: not kept in the last minute (99 % within 120ms)"),
        ("not ready", "replica 1 for 12s: it answers 404 for /healthz"),
        ("not ready", "replica 2: x"),
        ("out of reach", "one request alone takes 0.3 s"),
        (
            "borrowed",
            "1 GPU of mnist (j-mnist), 1 rank of it left, 12s ago;"
            " 0.5 of a GPU of j-other, which waits until the loan ends",
        ),
    ]


def test_an_update_of_a_single_replica_says_what_it_needs() -> None:
    update = UpdateView(revision=1, replaced=0, replicas=1, since=NOW - 5, back_to=0)
    (told,) = [
        line for name, line in service_lines(service(wanted=1, granted=1, update=update), LOOK) if name == "update"
    ]
    assert "the only replica stays until a new one beside it is ready, which needs room" in told


async def test_ps_describe_and_explain_show_a_service(gateway: ToldGateway, capsys: Said) -> None:
    view = service(url="http://127.0.0.1:8480/s/j-1/", requests=REQUESTS)
    size = {"worker": RoleSize(granted=3, wanted=3, least=1, most=8)}
    job = job_view(JOB, name="chat", kind=Kind.INFERENCE, service=view, size=size, nodes=("node-1",))
    told = Explanation(
        job_id=JOB, name="chat", state=JobState.RUNNING, code="fits", sentence="it is on node-1", service=view
    )
    gateway.answers |= {
        "GET /v1/jobs": JobsView(jobs=(job,)),
        "GET /v1/nodes": NodesView(nodes=()),
        "GET /v1/jobs/chat": job,
        f"GET /v1/jobs/{JOB}/events": [event_view("submitted")],
        "GET /v1/jobs/chat/explain": told,
    }
    assert await weft(gateway, "ps") == 0
    assert "2/3 ready, 41.2/s, p99 120ms, 3 queued · node-1" in capsys.readouterr().out
    for command in ("describe", "explain"):
        assert await weft(gateway, command, "chat") == 0
        assert "3 (1 … 8), 2 ready" in capsys.readouterr().out


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    assert (host("10.0.0.1"), host("::1")) == ("10.0.0.1", "[::1]")
