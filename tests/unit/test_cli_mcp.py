"""`weft mcp`: lines of JSON-RPC in, answers out; it reads only, unless it may write."""

import json
import re
from typing import Any

import pytest

from tests.support.told_gateway import ToldGateway
from tests.support.views import job_view
from weft.client import Client
from weft.domain.spec import JobSpec, Role
from weft.messages.asks import AskKind
from weft.messages.http import Accepted, JobsView
from weftd.cli.assistant.protocol import LINE_BYTES_MAX, TEXT_CHARACTERS_MAX, VERSIONS, AssistantServer
from weftd.cli.assistant.tools import TOOLS

READING = [tool for tool in TOOLS if not tool.writes]


async def ask(gateway: ToldGateway, *requests: Any, write: bool = False) -> list[Any]:
    """The answers to these requests, each a value or a line."""
    answers = []
    async with Client(gateway.url, "t", retry_seconds=0.0, first_seconds=0.0) as client:
        server = AssistantServer(client, TOOLS if write else READING, version="0")
        for request in requests:
            line = request if isinstance(request, bytes) else json.dumps(request).encode()
            answer = await server.answer(line)
            answers.append(None if answer is None else json.loads(answer))
            assert answer is None or b"\n" not in answer
    return answers


def request(method: str, request_id: Any = 1, **parameters: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": parameters}


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return request("tools/call", name=tool, arguments=arguments)


async def test_an_assistant_begins_and_lists_the_tools(gateway: ToldGateway) -> None:
    begun, notified, pinged, told = await ask(
        gateway,
        request("initialize", protocolVersion="2025-03-26", capabilities={}),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        request("ping", "a"),
        request("tools/list"),
    )
    assert begun["result"]["protocolVersion"] == "2025-03-26"
    assert begun["result"]["serverInfo"]["name"] == "weft"
    assert notified is None
    assert pinged == {"jsonrpc": "2.0", "id": "a", "result": {}}
    assert [tool["name"] for tool in told["result"]["tools"]] == [tool.name for tool in READING]
    assert all(tool["annotations"]["readOnlyHint"] for tool in told["result"]["tools"])
    assert all(tool["inputSchema"]["type"] == "object" for tool in told["result"]["tools"])


async def test_a_tool_asks_the_gateway_as_the_token_may(gateway: ToldGateway) -> None:
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(job_view(),))
    (told,) = await ask(gateway, call("list_jobs", name="mlp-*", states=["running"], limit=3))
    assert json.loads(told["result"]["content"][0]["text"])[0]["id"] == "j-aaaaaaaaaa"
    assert gateway.asked == ["GET /v1/jobs?state=running&name=mlp-*&limit=3&benchmarks=0"]


async def test_values_of_variables_are_hidden(gateway: ToldGateway) -> None:
    roles = {"worker": Role(env={"B": "hush"})}
    spec = JobSpec(name="train", command=("x",), env={"A": "hush"}, roles=roles)
    gateway.answers |= {"GET /v1/jobs/train": job_view(spec=spec), "GET /v1/jobs/j-aaaaaaaaaa/events": []}
    (told,) = await ask(gateway, call("describe_job", job="train"))
    assert "hush" not in json.dumps(told)
    assert "(hidden)" in told["result"]["content"][0]["text"]


async def test_what_a_log_has_cannot_steer_a_terminal_and_is_cut(gateway: ToldGateway) -> None:
    gateway.answers["GET /v1/jobs/train/logs"] = b"\x1b]0;x\x07ok\x1b[2J\n" + b"x" * (TEXT_CHARACTERS_MAX + 5)
    (told,) = await ask(gateway, call("read_log", job="train"))
    text = told["result"]["content"][0]["text"]
    assert text.startswith("ok\n")
    assert "\x1b" not in text
    assert text.endswith(" more characters: ask for less)")


async def test_nothing_is_changed_unless_it_may_write(gateway: ToldGateway) -> None:
    gateway.answers["POST /v1/jobs/train/cancel"] = Accepted(id="j-1", ask=AskKind.CANCEL, state="running")
    (told,) = await ask(gateway, call("cancel_job", job="train"))
    assert told["error"]["code"] == -32602
    assert gateway.asked == []
    (told,) = await ask(gateway, call("cancel_job", job="train"), write=True)
    assert not told["result"]["isError"]
    assert gateway.asked == ["POST /v1/jobs/train/cancel"]


async def test_a_refusal_is_an_answer_of_the_tool(gateway: ToldGateway) -> None:
    gateway.refuse("GET /v1/jobs/none/explain", 404, "job", "no job has the id or the name none")
    (told,) = await ask(gateway, call("explain_job", job="none"))
    assert told["result"] == {
        "content": [{"type": "text", "text": "job: no job has the id or the name none"}],
        "isError": True,
    }


BAD: list[tuple[Any, int]] = [
    (b"", -32700),
    (b"{", -32700),
    (b"\xff", -32700),
    (b"[" * 100_000, -32700),
    (b"[]", -32600),
    (b"7", -32600),
    ([request("ping")], -32600),
    ({"id": 1}, -32600),
    ({"id": {}, "method": "ping"}, -32600),
    ({"id": 1.5, "method": "ping"}, -32600),
    ({"id": None, "method": "ping"}, -32600),
    (b'{"id": 1e400, "method": "ping"}', -32700),
    (b'{"id": "\\ud800", "method": "ping"}', -32700),
    (b'{"id": 1, "method": ' * 500, -32700),
    ({"id": 1, "method": ["ping"]}, -32600),
    ({"id": 1, "method": "\x1b[2J\n\0"}, -32601),
    ({"id": 1, "method": "ping", "params": None}, -32602),
    (b" " * (LINE_BYTES_MAX + 1), -32600),
    (request("resources/list"), -32601),
    (request("x" * 5000), -32601),
    ({"id": 1, "method": "ping", "params": [1]}, -32602),
    (request("tools/call"), -32602),
    (call("rm"), -32602),
    (request("tools/call", name=["list_jobs"]), -32602),
]


@pytest.mark.parametrize(("line", "code"), BAD)
async def test_what_is_no_request_is_refused_and_the_next_is_answered(
    gateway: ToldGateway, line: Any, code: int
) -> None:
    refused, pinged = await ask(gateway, line, request("ping", 2))
    assert refused["error"]["code"] == code
    assert len(refused["error"]["message"]) < 500
    assert pinged["result"] == {}


@pytest.mark.parametrize(
    "arguments",
    [{"limit": 10**9}, {"limit": "x"}, {"states": ["no"]}, {"bogus": 1}, {"name": "x" * 5000}, {"labels": ["a"] * 99}],
)
async def test_arguments_that_make_no_sense_ask_nothing(gateway: ToldGateway, arguments: dict[str, Any]) -> None:
    (told,) = await ask(gateway, call("list_jobs", **arguments))
    assert told["result"]["isError"]
    assert gateway.asked == []


async def test_what_has_no_id_is_no_request_and_changes_nothing(gateway: ToldGateway) -> None:
    without_id = {name: value for name, value in call("cancel_job", job="train").items() if name != "id"}
    assert await ask(gateway, without_id, write=True) == [None]
    assert gateway.asked == []


@pytest.mark.parametrize(
    ("request_id", "version"), [(10**400, ["x"]), ("\u202e\0\x1b", {}), ("x" * 100_000, None), (-(2**63) - 1, 1e308)]
)
async def test_odd_ids_come_back_as_they_were_and_an_odd_version_is_not_taken(
    gateway: ToldGateway, request_id: Any, version: Any
) -> None:
    (told,) = await ask(gateway, request("initialize", request_id, protocolVersion=version))
    assert (told["id"], told["result"]["protocolVersion"]) == (request_id, VERSIONS[0])


@pytest.mark.parametrize("key", ["a\r\nX-Evil: y", "a\0", "\x7f", "\u202e"])
async def test_a_key_is_no_header_of_its_own(gateway: ToldGateway, key: str) -> None:
    told, pinged = await ask(gateway, call("submit_job", spec={"name": "x"}, key=key), request("ping"), write=True)
    assert told["result"] == {
        "content": [{"type": "text", "text": "Idempotency-Key: expected printable characters"}],
        "isError": True,
    }
    assert pinged["result"] == {}
    assert gateway.asked == []


@pytest.mark.parametrize("job", [".", "..", "a/../..", "a?b#c", "%2e%2e", "\0", "a\r\nb"])
async def test_a_name_of_a_job_leads_to_no_other_request(gateway: ToldGateway, job: str) -> None:
    told, pinged = await ask(gateway, call("cancel_job", job=job), request("ping"), write=True)
    assert (told["result"]["isError"], pinged["result"]) == (True, {})
    assert all(re.fullmatch(r"POST /v1/jobs/[^/?#]+/cancel", asked) for asked in gateway.asked), gateway.asked


async def test_a_deep_specification_is_sent_or_refused_and_the_next_request_is_answered(gateway: ToldGateway) -> None:
    for depth in range(850, 1100, 10):
        spec = b'{"a":' * depth + b"1" + b"}" * depth
        line = json.dumps(call("submit_job", spec="SPEC")).encode().replace(b'"SPEC"', spec)
        told, pinged = await ask(gateway, line, request("ping"), write=True)
        assert told.get("error", {}).get("code") == -32700 or told["result"]["isError"]
        assert pinged["result"] == {}
