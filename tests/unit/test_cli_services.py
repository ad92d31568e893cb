"""The commands for services, from what is typed to what is sent, printed and returned; and what they refuse."""

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from libs.domain.job import Cause, CauseCode, JobState
from libs.domain.sizes import RoleSize
from libs.domain.spec import JobSpec, Kind, Objective
from libs.messages.asks import AskKind
from libs.messages.http import Accepted, JobsView, NodesView, Submitted
from libs.messages.http_services import (
    EndpointsView,
    EndpointView,
    LoanView,
    RequestsView,
    ServiceView,
    UpdateView,
)
from libs.planning.explain import Explanation
from services.cli import notebook as notebooks
from services.cli.__main__ import main, parse
from services.cli.call import checked_headers, checked_path
from services.cli.complaint import Complaint
from services.cli.drawing.look import Look
from services.cli.drawing.services import host, service_lines, service_short
from services.cli.spec import spec_of
from tests.support.told_gateway import ToldGateway, told_gateway
from tests.support.views import NOW, event_view, job_view

Said = pytest.CaptureFixture[str]
JOB = "j-aaaaaaaaaa"
UPDATED = Accepted(id=JOB, ask=AskKind.UPDATE, state="running")
LOOK = Look(now=NOW, width=200, bars=False)


@pytest.fixture
async def gateway() -> AsyncIterator[ToldGateway]:
    async with told_gateway() as gateway:
        yield gateway


async def weft(gateway: ToldGateway, name: str, *typed: str) -> int:
    place = ["--url", gateway.url, "--token", "a b+c"]
    words = typed.index("--") if "--" in typed else len(typed)
    return await asyncio.to_thread(main, [name, *typed[:words], *place, *typed[words:]])


def endpoints(gateway: ToldGateway, *found: EndpointView, **fields: Any) -> EndpointsView:
    """Told by the gateway, which plays the router too."""
    url = f"{gateway.url}/s/{JOB}/"
    view = EndpointsView(**{"job_id": JOB, "name": "chat", "digest": "d", "url": url, "endpoints": found, **fields})
    gateway.answers[f"GET /v1/jobs/{JOB}/endpoints"] = view
    return view


def endpoint(rank: int, **fields: Any) -> EndpointView:
    usual = {"epoch": 0, "rank": rank, "node_id": "node-1", "address": "10.0.0.1", "port": 4000 + rank}
    return EndpointView(**{**usual, **fields})


# update


async def test_update_sends_what_was_given_and_nothing_else(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers[f"POST /v1/jobs/{JOB}/update"] = UPDATED
    os.environ["FROM_HERE"] = "x"
    typed = (JOB, "--env", "MODEL=big=er", "--env", "OLD=", "--env", "FROM_HERE", "--", "serve", "--model", "big")
    assert await weft(gateway, "update", *typed) == 0
    assert json.loads(gateway.bodies[-1]) == {
        "command": ["serve", "--model", "big"],
        "env": {"MODEL": "big=er", "OLD": "", "FROM_HERE": "x"},
    }
    assert capsys.readouterr().out == f"{JOB} will run that, replica by replica (it is running)\n"
    assert await weft(gateway, "update", JOB, "--image", "a:2") == 0
    assert json.loads(gateway.bodies[-1]) == {"image": "a:2"}


async def test_an_update_of_nothing_is_refused_and_nothing_is_sent(gateway: ToldGateway, capsys: Said) -> None:
    assert await weft(gateway, "update", JOB) == 2
    assert await weft(gateway, "update", JOB, "--env", "NOT_SET_ANYWHERE") == 1
    assert gateway.asked == []
    err = capsys.readouterr().err.splitlines()
    assert "what to change is missing" in err[0]
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
    assert json.loads(capsys.readouterr().out) == {"url": f"{view.url}?weft_token=a%20b%2Bc"}


async def test_open_hands_the_token_over_unless_the_service_is_public(gateway: ToldGateway, capsys: Said) -> None:
    view = endpoints(gateway, endpoint(0, ready=True))
    assert await weft(gateway, "open", JOB) == 0
    assert capsys.readouterr().out == f"{view.url}?weft_token=a%20b%2Bc\n"
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


# call


async def test_call_sends_the_request_with_the_token_and_copies_the_answer(
    gateway: ToldGateway, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    endpoints(gateway, endpoint(0, ready=True))
    gateway.answers[f"POST /s/{JOB}/v1/café"] = web.Response(body=b'{"a":\xff\x1b[1m1}', headers={"X-Model": "m"})
    assert await weft(gateway, "call", JOB, "/v1/café?q=1%202", "-d", '{"é": 1}', "-H", "Accept: */*", "-i") == 0
    assert gateway.asked[-1] == f"POST /s/{JOB}/v1/caf%C3%A9?q=1%202"
    assert gateway.bodies[-1] == '{"é": 1}'.encode()
    out = capfdbinary.readouterr().out
    assert out.startswith(b"200 OK\n")
    assert b"\nX-Model: m\n" in out
    assert out.endswith(b'\n\n{"a":\xff\x1b[1m1}')


async def test_the_token_goes_to_services_that_ask_for_one_alone(gateway: ToldGateway) -> None:
    sent: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        sent.append({name.lower(): value for name, value in request.headers.items()})
        return web.Response(body=b"ok")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/s/{JOB}/"
    for token in (True, False):
        endpoints(gateway, url=url, token=token)
        assert await weft(gateway, "call", JOB, "/", "-d", "x", "-X", "put") == 0
    await runner.cleanup()
    assert sent[0]["authorization"] == "Bearer a b+c"
    assert sent[0]["content-type"] == "application/octet-stream"
    assert "authorization" not in sent[1]


async def test_an_error_of_the_service_is_one_sentence_and_status_22(gateway: ToldGateway, capsys: Said) -> None:
    endpoints(gateway)
    gateway.refuse(f"GET /s/{JOB}/", 429, "", "its queue of 1000 requests is full", retry_after=3)
    assert await weft(gateway, "call", JOB) == 22
    said = capsys.readouterr()
    assert "its queue of 1000" in said.out
    assert said.err == (
        "weft: chat answered 429 Too Many Requests: its queue of 1000 requests is full; ask again in 3 s\n"
    )
    gateway.answers[f"GET /s/{JOB}/"] = web.Response(status=500, body=b"\x1b]0;owned\x07oops")
    assert await weft(gateway, "call", JOB) == 22
    assert capsys.readouterr().err == "weft: chat answered 500 Internal Server Error\n"


async def test_call_prints_one_document_where_json_is_asked_for(gateway: ToldGateway, capsys: Said) -> None:
    endpoints(gateway)
    gateway.answers[f"GET /s/{JOB}/"] = web.Response(body=b"a\xffb", headers={"X-Model": "m"})
    assert await weft(gateway, "call", JOB, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["body"], told["headers"]["X-Model"]) == (200, "a�b", "m")


async def test_a_router_that_is_not_there_and_one_that_says_nothing_are_told_apart(
    gateway: ToldGateway, capsys: Said
) -> None:
    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoints(gateway, url=f"http://127.0.0.1:{port}/s/{JOB}/")
    assert await weft(gateway, "call", JOB, "--timeout", "0.2") == 1
    assert capsys.readouterr().err == "weft: chat: nothing came for 0.2 s\n"
    server.close()
    assert await weft(gateway, "call", JOB) == 1
    assert capsys.readouterr().err.startswith(f"weft: no answer from the router at http://127.0.0.1:{port}: ")


async def test_the_body_may_come_from_a_file_that_is_there(gateway: ToldGateway, capsys: Said, tmp_path: Path) -> None:
    endpoints(gateway)
    (tmp_path / "body").write_bytes(b"\x00\xff")
    gateway.answers[f"POST /s/{JOB}/"] = b"ok"
    assert await weft(gateway, "call", JOB, "-d", f"@{tmp_path}/body") == 0
    assert gateway.bodies[-1] == b"\x00\xff"
    assert await weft(gateway, "call", JOB, "-d", f"@{tmp_path}/none") == 1
    assert capsys.readouterr().err == f"weft: -d: cannot read {tmp_path}/none: No such file or directory\n"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("v1", "begins with /"),
        ("", "begins with /"),
        ("http://elsewhere/", "begins with /"),
        ("/a\nX-Evil: 1", "control character, its character 3"),
        ("/a\x00", "control character"),
        ("/a\x9b", "control character"),
        ("/a#b", "write # as %23"),
        ("/a\\..\\b", "%5C"),
        ("/../j-other/", "lead out of the service"),
        ("/a/%2e%2E/b", "lead out of the service"),
        ("/%2e%2e%5cb", "lead out of the service"),
        ("/" + "ü" * 5000, "at most 8192"),
    ],
)
def test_a_path_that_is_none_is_refused(path: str, why: str) -> None:
    with pytest.raises(Complaint) as complaint:
        checked_path(path)
    assert why in complaint.value.reason
    assert complaint.value.reason.isprintable()
    assert len(complaint.value.reason) < 300


@given(st.text(max_size=60))
def test_a_path_that_is_taken_is_plain_and_stays_in_the_service(text: str) -> None:
    try:
        path = checked_path(f"/{text}")
    except Complaint:
        return
    except UnicodeEncodeError:
        assert any("\ud800" <= char <= "\udfff" for char in text)  # a shell cannot pass such an argument
        return
    assert path.isascii()
    assert path.isprintable()
    assert " " not in path
    assert not {".", ".."} & set(path.partition("?")[0].split("/"))


OURS = ["Authorization: Bearer x", "host: elsewhere", "Content-Length: 5", "X-Weft-Upstream: 10.0.0.1:80"]


@pytest.mark.parametrize(
    "header",
    ["", "x", ": x", "a b: c", "A: x\nB: y", "A: \x00", "Ä: x", "A: ü", "A: " + "x" * 8193, "x" * 257 + ": x", *OURS],
)
def test_a_header_that_is_none_or_is_not_the_callers_is_refused(header: str) -> None:
    with pytest.raises(Complaint) as complaint:
        checked_headers([header])
    assert complaint.value.field == "-H"
    assert complaint.value.reason.isprintable()


def test_headers_are_bounded_and_kept_as_they_are() -> None:
    assert checked_headers(["Accept:text/plain ", "X-A: b: c"]) == [("Accept", "text/plain"), ("X-A", "b: c")]
    with pytest.raises(Complaint):
        checked_headers(["A: b"] * 101)


@pytest.mark.parametrize("method", ["G T", "GET\r\n", "GÉT", "x" * 21])
async def test_a_method_that_is_none_is_refused(gateway: ToldGateway, capsys: Said, method: str) -> None:
    assert await weft(gateway, "call", JOB, "-X", method) == 2
    assert gateway.asked == []
    assert "expected a method such as GET or POST" in capsys.readouterr().err


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
    with pytest.raises(Complaint) as complaint:
        asked(*typed)
    assert complaint.value.field == field


# ps, describe, explain


def service(**fields: Any) -> ServiceView:
    return ServiceView(**{"wanted": 3, "granted": 3, "ready": 2, "least": 1, "most": 8, **fields})


REQUESTS = RequestsView(
    seconds=60.0, rate=41.23, arrived=2474, late=30, in_flight=12, queued=3, p50=0.02, p99=0.12, objective=0.12
)


def test_a_list_shows_ready_of_wanted_and_the_requests() -> None:
    assert service_short(service()) == "2/3 ready"
    assert service_short(service(requests=REQUESTS)) == "2/3 ready, 41.2/s, p99 120ms, 3 queued"
    assert service_short(service(wanted=0, granted=0, ready=0)) == "at zero"
    assert service_short(service(ready=None)) == "?/3 ready"
    updating = UpdateView(revision=2, replaced=1, replicas=3, since=NOW - 5)
    assert service_short(service(update=updating, kept=False)) == "2/3 ready, update 1/3, objective not kept"


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
        ("out of reach", "one request alone takes 0.3 s"),
        (
            "borrowed",
            "1 GPU of mnist (j-mnist), 1 rank of it left, 12s ago; 0.5 GPUs of j-other, which waits meanwhile",
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


# notebook


def notebook_args(*typed: str) -> argparse.Namespace:
    return parse("notebook", ["notebook", *typed])


def test_a_notebook_is_a_job_with_one_replica_that_serves_below_its_own_path() -> None:
    args = notebook_args("--share", "0.25", "--gpu-memory", "8GiB", "--env", "A=b", "--cpus", "2")
    spec = notebooks.notebook_spec(args, cwd="/home/ada", jupyter="/opt/jupyter")
    assert (spec.kind, spec.workdir, spec.env) == (Kind.NOTEBOOK, "/home/ada", {"A": "b"})
    assert spec.service is not None
    assert (spec.service.path, spec.service.ready, spec.service.public) == ("/s/{job}/", None, False)
    share = spec.roles["worker"].share
    assert share is not None
    assert (share.request, share.memory) == (0.25, "8GiB")
    assert spec.command is not None
    assert spec.command[-2:] == ("/opt/jupyter", "")
    boxed = notebooks.notebook_spec(notebook_args("--image", "jupyter/base"), cwd="/home/ada", jupyter="/opt/jupyter")
    assert (boxed.workdir, boxed.image) == (None, "jupyter/base")
    assert boxed.command is not None
    assert boxed.command[-2:] == ("", "0.0.0.0")  # nobody but its own network reaches a container's own loopback


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        (("--gpus", "-1"), "--gpus"),
        (("--share", "2", "--gpu-memory", "1GiB"), "--share"),
        (("--share", "0.5", "--gpu-memory", "much"), "--gpu-memory"),
        (("--name", "Ünicode"), "--name"),
        (("--volume", "/a"), "--volume"),
        (("--gpus", "1", "--share", "0.5", "--gpu-memory", "1GiB"), ""),
    ],
)
def test_a_wrong_option_of_a_notebook_is_named(typed: tuple[str, ...], field: str) -> None:
    with pytest.raises(Complaint) as complaint:
        notebooks.notebook_spec(notebook_args(*typed), cwd="/", jupyter="")
    assert complaint.value.field == field


async def test_notebook_prints_its_url_once_it_answers(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/jobs"] = Submitted(id=JOB, name="notebook", created=True, notes=("it may be stopped",))
    view = endpoints(gateway, endpoint(0, ready=True))
    assert await weft(gateway, "notebook", "--gpus", "1") == 0
    said = capsys.readouterr()
    assert said.out == f"{view.url}?weft_token=a%20b%2Bc\n"
    assert said.err == "note: it may be stopped\n"
    assert await weft(gateway, "notebook", "--share", "0.5") == 2


async def test_notebook_says_that_there_is_no_jupyter(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/jobs"] = Submitted(id=JOB, name="notebook", created=True)
    endpoints(gateway)
    gateway.answers[f"GET /v1/jobs/{JOB}"] = job_view(JOB, JobState.FAILED, exit_code=127)
    assert await weft(gateway, "notebook") == 1
    assert f"weft: there is no jupyter in the environment of the job {JOB}" in capsys.readouterr().err


async def test_notebook_gives_up_waiting_and_says_for_what(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/jobs"] = Submitted(id=JOB, name="notebook", created=True)
    endpoints(gateway)
    no_room = Cause(code=CauseCode.NO_ROOM, sentence="wants 1 GPU; none is free")
    gateway.answers[f"GET /v1/jobs/{JOB}"] = job_view(JOB, JobState.QUEUED, name="notebook", waiting_for=no_room)
    assert await weft(gateway, "notebook", "--wait", "0.3") == 1
    assert "did not answer within 0s: it waits: wants 1 GPU; none is free" in capsys.readouterr().err


async def started(script: str, tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", script, "notebook", *arguments),
        env={"PATH": "/nowhere", "WEFT_PORT": "4000", "WEFT_SERVICE_PATH": "/s/j-1/", **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_the_script_of_a_notebook_finds_jupyter_and_listens_where_its_node_is_reached(tmp_path: Path) -> None:
    fake = tmp_path / "jupyter"
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)
    status, out, _ = await started(notebooks.SCRIPT, tmp_path, str(fake), "", MASTER_ADDR="127.0.0.1")
    assert status == 0
    assert {"lab", "--ip=127.0.0.1", "--port=4000", "--ServerApp.base_url=/s/j-1/"} <= set(out.split())
    _, out, _ = await started(notebooks.SCRIPT, tmp_path, "/gone", "", PATH=str(tmp_path), MASTER_ADDR="10.0.0.7")
    assert "--ip=0.0.0.0" in out.split()
    _, out, _ = await started(notebooks.SCRIPT, tmp_path, "", "0.0.0.0", PATH=str(tmp_path), MASTER_ADDR="127.0.0.1")
    assert "--ip=0.0.0.0" in out.split()
    status, _, err = await started(notebooks.SCRIPT, tmp_path, "", "")
    assert (status, err) == (127, "weft notebook: there is no jupyter here: PATH is /nowhere\n")
