"""The front for models: the model is found in any body, however it is cut, and what is said of it."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.runs import until
from tests.support.tier import examples
from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weftd.router.answers import question_of
from weftd.router.caddy import Proxy, configuration
from weftd.router.front import Front
from weftd.router.settings import RouterSettings
from weftd.router.thinking.bodies import Body, head_of
from weftd.router.thinking.models import (
    LISTED_MAX,
    MARKS_MAX,
    NO_OBJECT,
    NO_TEXT,
    NOT_SAID,
    ModelFinder,
    list_of,
    no_model,
    problem_of,
    refusal_of,
)
from weftd.router.thinking.routes import Elsewhere, Refused, Route, route_of
from weftd.router.thinking.table import RoutedService, ServiceTable

JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "a", "\\"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def found(pieces: list[bytes]) -> ModelFinder:
    finder = ModelFinder()
    for piece in pieces:
        finder.feed(piece)
    finder.end()
    return finder


def beginning(body: dict[str, Any], size: int = 1 << 20) -> str:
    text = json.dumps(body).encode()
    return found([text[at : at + size] for at in range(0, len(text), size)]).prompt


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


@settings(max_examples=examples(100), deadline=None)
@given(
    size=st.integers(1, 5000),
    first=st.text(max_size=50) | st.just("long " * 9000),
    model_first=st.booleans(),
)
def test_a_conversation_begins_alike_in_each_turn_however_it_is_cut(size: int, first: str, model_first: bool) -> None:
    talk = [said("system", 'be "kind" {["role": "user"'), said("user", first)]
    more = [*talk, said("assistant", "yes"), said("user", "and then?")]
    bodies = [
        {"model": "m", "messages": turn} if model_first else {"messages": turn, "model": "m"} for turn in (talk, more)
    ]
    one, other = (beginning(body, size) for body in bodies)
    assert one == other != ""
    assert one != beginning({"model": "m", "messages": [talk[0], said("user", "x" + first)]})


def test_a_text_begins_alike_for_its_first_bytes_and_a_body_without_a_prompt_has_no_beginning() -> None:
    text = "once upon a time " * 100
    assert beginning({"model": "m", "prompt": text}) == beginning({"model": "m", "input": text + "more"}, 7) != ""
    assert beginning({"model": "m", "prompt": [1, 2, 3]}) != ""
    for body in (
        {"model": "m"},
        {"model": "m", "messages": 7},
        {"model": "m", "tools": ["x" * 40_000], "messages": []},
    ):
        assert beginning(body, 1000) == ""
    assert found([b'{"model": "a", "model": 7, "messages": [{}]}']).model == "a"


@settings(max_examples=examples(500), deadline=None)
@given(
    before=st.dictionaries(st.sampled_from(["messages", "prompt", "x", 'a"b\\']), JSON, max_size=3),
    model=st.text(max_size=20),
    size=st.integers(1, 7),
    indent=st.sampled_from([None, 1]),
)
def test_the_model_is_found_however_the_body_is_cut(
    before: dict[str, Any], model: str, size: int, indent: int | None
) -> None:
    text = json.dumps({**before, "model": model, "after": 1}, indent=indent).encode()
    finder = found([text[at : at + size] for at in range(0, len(text), size)])
    assert (finder.model, finder.wrong) == (model, "")
    if finder.prompt_at:
        first = next(name for name in before if name in ("messages", "prompt"))
        assert text[finder.prompt_at :].startswith(json.dumps(before[first], indent=indent).encode()[:1])


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"", f"the body is empty; {NOT_SAID.removeprefix('the ')}"),
        (b" [1]", NO_OBJECT),
        (b'{"a": {"model": "m"}, "b": "model"}', NOT_SAID),
        (b'{"a": 1', NOT_SAID),
        (b'{"model": null}', NO_TEXT),
        (b'{"model": "\\ud800"}', NO_TEXT),
    ],
)
def test_a_body_without_a_model_is_refused_with_a_sentence(body: bytes, wrong: str) -> None:
    assert (found([body]).wrong, found([body]).model) == (wrong, None)


def test_a_body_of_countless_values_is_not_read_to_its_end() -> None:
    finder = found([b'{"input": [' + b"[" * (MARKS_MAX + 10)])
    assert finder.wrong.startswith("`model` comes after")


@settings(max_examples=examples(200), deadline=None)
@given(parts=st.lists(st.binary(min_size=1, max_size=40), max_size=5), size=st.integers(1, 9))
def test_chunks_are_read_however_they_are_cut(parts: list[bytes], size: int) -> None:
    sent = b"".join(b"%x;a=b\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: x\r\n\r\n"
    body, read, told = Body(head_of(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")), b"", b""
    for at in range(0, len(sent), size):
        assert not body.over
        part = body.feed(sent[at : at + size])
        read, told = read + part, told + body.framed(part)
    assert body.over
    assert read == b"".join(parts)
    again = Body(head_of(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"))
    assert (again.feed(told), again.over) == (read, True)


def test_a_body_of_a_length_is_over_with_its_last_byte() -> None:
    body = Body(head_of(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n"))
    assert (body.feed(b"ab"), body.over) == (b"ab", False)
    assert (body.feed(b"c"), body.over, body.framed(b"c")) == (b"c", True, b"c")


def test_a_head_is_told_again_without_what_the_front_answers_for() -> None:
    head = head_of(b"POST /v1/x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nAccept: */*\r\n\r\n")
    told = head.told(without={b"expect"}, more={"X-Weft-Call": "1"})
    assert told == b"POST /v1/x HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nX-Weft-Call: 1\r\n\r\n"


def service(job_id: str, seq: int, *models: str, tenant: str = "alice", served: bool = False) -> RoutedService:
    return RoutedService(
        job_id=job_id,
        name="chat",
        tenant=tenant,
        seq=seq,
        concurrency=1,
        queue=1,
        timeout=1.0,
        prefix="",
        h2c=False,
        public=False,
        models=models,
        served=served,
    )


def names_of(body: bytes) -> list[str]:
    return [model["id"] for model in msgspec.json.decode(body)["data"]]


def test_a_list_of_models_has_a_bound_and_those_of_the_newest_services() -> None:
    services = [service(f"s{n}", n, *(f"{n}-{name}" for name in range(300))) for n in range(8)]
    names = names_of(list_of(services))
    assert (len(names), names) == (LISTED_MAX, sorted(names))
    assert Counter(name.split("-")[0] for name in names) == {"7": 300, "6": 300, "5": 300, "4": 100}


def test_of_several_services_with_a_model_the_newest_that_was_ready_answers_and_no_other_tenants() -> None:
    table = ServiceTable([service("a", 1, "m", served=True), service("b", 2, "m"), service("c", 3, "m", tenant="bob")])
    assert table.of_model("alice", "m") == service("a", 1, "m", served=True)
    assert table.of_model("alice", "m", job="b") == service("b", 2, "m")
    assert table.of_model("eve", "m") is None
    table.put(service("a", 1, "other", served=True))
    found_now = table.of_model("alice", "m")
    assert found_now is not None
    assert found_now.job_id == "b"
    assert names_of(list_of(table.with_models("alice"))) == ["m", "other"]
    table.drop("b")
    assert table.of_model("alice", "m") is None
    table.drop("a")
    assert table.with_models("alice") == []


def test_the_paths_of_the_front_are_its_own_at_the_root_alone() -> None:
    assert route_of("/v1/chat/completions?x=1", "127.0.0.1", ()) == Route(front="/v1/chat/completions")
    assert route_of("/v1/models", "chat.alice.localhost", ("localhost",)) == Route(
        name="chat", tenant="alice", by_host=True
    )
    assert route_of("/s/j-1/v1/models", "127.0.0.1", ()) == Route(job="j-1")
    assert not isinstance(route_of("/v1/models?weft_token=weft_x", "127.0.0.1", ()), Route | Elsewhere)
    assert refusal_of("/v1/embeddings", "POST") is None
    assert refusal_of("/v1/models/a/b", "GET") is None
    assert refusal_of("/v1/models", "POST") == Refused(405, "this path allows only GET")
    nothing = refusal_of("/v1/files", "GET")
    assert nothing is not None
    assert nothing.status == 404


def test_an_error_has_openais_form() -> None:
    error = msgspec.json.decode(problem_of(no_model("x" * 500)))["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "model_not_found", "model")
    assert len(error["message"]) < 250
    limited = msgspec.json.decode(problem_of(Refused(429, "too many", 2.0)))["error"]
    assert (limited["type"], limited["code"], limited["param"]) == ("rate_limit_error", "rate_limit_exceeded", None)
    assert msgspec.json.decode(problem_of(Refused(503, "none is ready")))["error"]["type"] == "server_error"


def test_only_the_front_says_which_model_a_request_names(tmp_path: Any) -> None:
    """Caddy removes such headers of a client, and passes none on to a replica."""
    question = question_of(b"GET / HTTP/1.1\r\nX-Weft-Call: c\r\nX-Weft-Model: a%2Fb%C3%A9")
    assert (question.call, question.model) == ("c", "a/bé")
    proxy = Proxy(
        listen="fd/3",
        listen_inside="fd/4",
        front=tmp_path / "f",
        admission=tmp_path / "a",
        admin=tmp_path / "b",
        log_port=1,
    )
    servers = configuration(proxy)["apps"]["http"]["servers"]
    outside, inside = (str(servers[name]["routes"]) for name in ("weft", "inside"))
    assert "X-Weft-*" in outside
    assert "X-Weft-*" not in inside


@pytest.mark.parametrize(
    ("kind", "model", "field"),
    [
        ("inference", {"name": "m", "aliases": ["a", "m"]}, "service.model.aliases[1]"),
        ("inference", {"name": "m", "aliases": ["a"], "adapters": {"a": "/a"}}, "service.model.adapters.a"),
        ("inference", {"name": "m", "adapters": {"a": ""}}, "service.model.adapters.a"),
        ("inference", {"name": "m", "adapters": {"a b": "/a"}}, "service.model.adapters"),
        ("inference", {"name": "a model"}, "service.model.name"),
        ("notebook", {"name": "m"}, "service.model"),
        ("inference", {"name": "m", "tokens_per_minute": 0}, "service.model.tokens_per_minute"),
    ],
)
def test_a_model_that_no_client_could_name_is_refused_with_the_field(
    kind: str, model: dict[str, Any], field: str
) -> None:
    job = {"name": "chat", "kind": kind, "command": ["x"], "roles": {"worker": {}}, "service": {"model": model}}
    with pytest.raises(SpecError) as refused:
        decode_spec(json.dumps(job).encode())
    assert refused.value.field == field
    decode_spec(json.dumps({**job, "kind": "inference", "service": {"model": {"name": "org/m:8b"}}}).encode())


LARGE = 900_000  # more than a socket takes for a side that does not read


async def test_bodies_of_one_tenant_that_no_service_reads_refuse_no_other_tenants(tmp_path: Path) -> None:
    """The last body of alice is refused: the front keeps two already. One of bob is passed on."""
    came, go_on, writers = list[bytes](), asyncio.Event(), list[asyncio.StreamWriter]()

    async def inside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.readuntil(b"\r\n\r\n"))
        await go_on.wait()
        await reader.readexactly(LARGE)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    async def asked(tenant: str) -> asyncio.StreamReader:
        """The answer to a large request of a tenant, as Caddy sends it to the front."""
        reader, writer = await asyncio.open_unix_connection(tmp_path / "front")
        writers.append(writer)
        body = b'{"messages": "%b", "model": "m"}' % (b"x" * LARGE)
        head = f"POST /v1/completions HTTP/1.1\r\nX-Weft-Tenant: {tenant}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        return reader

    front = Front(RouterSettings(model_bodies_bytes_max=4_000_000), inside=tmp_path / "inside", told=1)
    async with (
        await asyncio.start_unix_server(inside, tmp_path / "inside", limit=1024),
        await asyncio.start_unix_server(front.serve, tmp_path / "front"),
    ):
        answers = [await asked("alice"), await asked("alice")]
        await until(lambda: len(came) == 2)
        refused = await asked("alice")
        assert (await refused.readline()).startswith(b"HTTP/1.1 503 ")
        answers.append(await asked("bob"))
        await until(lambda: len(came) == 3)
        assert not any(b"tenant" in head.lower() for head in came)
        go_on.set()
        assert [(await answer.readline()).split()[1] for answer in answers] == [b"200"] * 3
        for writer in writers:
            writer.close()
        await until(lambda: not front._kept)
    front.close()


@pytest.mark.parametrize(
    ("objective", "model", "field"),
    [
        ({"ttft": "500ms", "tpot": "0s"}, True, "objective.tpot"),
        ({"ttft": "0s"}, True, "objective.ttft"),
        ({"ttft": "soon"}, True, "objective.ttft"),
        ({"tpot": "50ms", "latency": "1s", "rate": 1}, True, "objective"),
        ({"ttft": "500ms"}, False, "objective.ttft"),
        ({"rate": 1}, True, "objective"),
        ({"latency": "1s"}, True, "objective"),
    ],
)
def test_an_objective_that_cannot_be_judged_is_refused_with_the_field(
    objective: dict[str, Any], model: bool, field: str
) -> None:
    with pytest.raises(SpecError) as refused:
        decode_spec(chat(objective, {"model": {"name": "m"}} if model else {}))
    assert refused.value.field == field


def test_an_objective_in_tokens_has_the_words_that_a_service_of_before_needs() -> None:
    spec = decode_spec(chat({"ttft": "500ms", "tpot": "50ms", "percentile": 95}, {"model": {"name": "m"}}))
    stored = json.loads(msgspec.json.encode(spec))["objective"]
    assert stored == {"latency": "500ms", "rate": 1.0, "percentile": 95.0, "ttft": "500ms", "tpot": "50ms"}
    assert decode_spec(msgspec.json.encode(spec)) == spec


def chat(objective: dict[str, Any], service: dict[str, Any]) -> bytes:
    job = {"name": "chat", "kind": "inference", "command": ["x"], "roles": {"worker": {}}, "service": service}
    return json.dumps({**job, "objective": objective}).encode()
