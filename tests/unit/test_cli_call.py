"""`weft call`: the request that it sends to a service, and what it refuses to send."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests.support.told_gateway import ToldGateway
from tests.support.told_services import JOB, endpoint, endpoints, weft
from weftd.cli.cli_error import CliError
from weftd.cli.services.call import checked_headers, checked_path

Said = pytest.CaptureFixture[str]


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
    with pytest.raises(CliError) as cli_error:
        checked_path(path)
    assert why in cli_error.value.reason
    assert cli_error.value.reason.isprintable()
    assert len(cli_error.value.reason) < 300


@given(st.text(max_size=60))
def test_a_path_that_is_taken_is_plain_and_stays_in_the_service(text: str) -> None:
    try:
        path = checked_path(f"/{text}")
    except CliError:
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
    with pytest.raises(CliError) as cli_error:
        checked_headers([header])
    assert cli_error.value.field == "-H"
    assert cli_error.value.reason.isprintable()


def test_headers_are_bounded_and_kept_as_they_are() -> None:
    assert checked_headers(["Accept:text/plain ", "X-A: b: c"]) == [("Accept", "text/plain"), ("X-A", "b: c")]
    with pytest.raises(CliError):
        checked_headers(["A: b"] * 101)


@pytest.mark.parametrize("method", ["G T", "GET\r\n", "GÉT", "x" * 21])
async def test_a_method_that_is_none_is_refused(gateway: ToldGateway, capsys: Said, method: str) -> None:
    assert await weft(gateway, "call", JOB, "-X", method) == 2
    assert gateway.asked == []
    assert "expected a method such as GET or POST" in capsys.readouterr().err
