"""The tokens that the router reads: from answers as they pass, from the metrics of engines, and what follows."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.tier import examples
from weftd.router.thinking.affinity import load_bound
from weftd.router.thinking.backends import InFlightRequest
from weftd.router.thinking.budgets import BUCKETS_MAX, TokenBudgets
from weftd.router.thinking.engine_metrics import NOTHING, EngineLoad, engine_load
from weftd.router.thinking.service_queue import ServiceQueue, first_token
from weftd.router.thinking.table import RoutedReplica, RoutedService
from weftd.router.thinking.usage import LINE_BYTES_MAX, AnswerRead, AnswerReader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
USAGE = {"prompt_tokens": 812, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 800}}


def event(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice] if choice else []}).encode()


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def stream(*, usage: dict[str, Any] | None = None, text: str = "word") -> bytes:
    lines = [event(delta={"role": "assistant", "content": ""}, index=0)]
    lines += [event(delta={"content": text}, index=0) for _ in range(4)]
    lines.append(event(delta={}, finish_reason="stop", index=0))
    if usage is not None:
        lines.append(b"data: " + json.dumps({"choices": [], "usage": usage}).encode())
    return b"\n\n".join([*lines, b"data: [DONE]", b""])


def read(answer: bytes, size: int = 1 << 20, path: bytes = b"/v1/chat/completions") -> AnswerRead:
    """One piece each tenth of a second."""
    reader = AnswerReader(path)
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    for place, piece in enumerate(pieces):
        reader.feed(piece, 0.1 * (place + 1))
    return reader.told(0.1 * len(pieces), whole=True, asked=100)


@settings(max_examples=examples(200), deadline=None)
@given(size=st.integers(1, 60), chunk=st.integers(1, 80), usage=st.booleans())
def test_the_tokens_of_a_stream_are_read_however_it_is_cut(size: int, chunk: int, usage: bool) -> None:
    body = stream(usage=USAGE if usage else None)
    told = read(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, chunk), size)
    assert (told.status, told.streamed, told.usage, told.tokens_out) == (200, True, usage, 4)
    assert (told.tokens_in, told.cached) == ((812, 800) if usage else (0, 0))
    assert told.first is not None
    assert told.each is not None
    assert told.begun is not None
    assert told.begun <= told.first <= told.took


def test_the_first_token_is_no_empty_piece_and_no_head() -> None:
    reader = AnswerReader(b"/v1/chat/completions")
    reader.feed(HEAD + b"\r\n", 0.1)
    reader.feed(event(delta={"role": "assistant", "content": ""}, index=0) + b"\n\n", 0.2)
    for tenth in range(5, 9):
        reader.feed(event(delta={"content": "x"}, index=0) + b"\n\n", tenth / 10)
    told = reader.told(1.0, whole=True, asked=0)
    assert (told.first, told.each) == (0.5, pytest.approx(0.1))


def test_a_whole_answer_has_its_usage_at_its_end() -> None:
    long = {"choices": [{"message": {"content": 'say "usage": {"prompt_tokens": 1} ' * 3000}}], "usage": USAGE}
    told = read(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + json.dumps(long).encode(), 1000)
    assert (told.streamed, told.tokens_in, told.tokens_out, told.cached) == (False, 812, 4, 800)
    assert (told.first, told.each) == (None, None)


def test_a_stream_of_responses_is_counted_by_its_deltas() -> None:
    events = [{"type": "response.created", "response": {"usage": None}}]
    events += [{"type": "response.output_text.delta", "delta": "word"} for _ in range(3)]
    events += [{"type": "response.output_text.done", "text": "word word word"}]
    usage = {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 0}}
    bodies = [events, [*events, {"type": "response.completed", "response": {"output": ["x"], "usage": usage}}]]
    for body, expected in zip(bodies, ((False, 0, 3), (True, 7, 3)), strict=True):
        text = b"".join(b"event: x\ndata: " + json.dumps(one).encode() + b"\n\n" for one in body)
        told = read(HEAD + b"\r\n" + text, 50, b"/v1/responses")
        assert (told.usage, told.tokens_in, told.tokens_out) == expected


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -1, "completion_tokens": 3},
        {"prompt_tokens": 1e300, "completion_tokens": 3},
        {"prompt_tokens": "many"},
        [1],
        None,
    ],
)
def test_nonsense_counts_as_nothing(usage: Any) -> None:
    body = json.dumps({"choices": [], "usage": usage}).encode()
    told = read(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + body)
    assert (told.usage, told.tokens_in, told.tokens_out) == (False, 0, 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00" * 1000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"\r\n" + b"data: " + b"x" * 5_000_000,
        HEAD + b"\r\n" + b"\n" * 100_000,
        b"HTTP/1.1 " + b"9" * 600_000,
    ],
)
def test_what_no_engine_answers_is_kept_within_its_bound(answer: bytes) -> None:
    reader = AnswerReader(b"/v1/completions")
    for at in range(0, len(answer), 1 << 16):
        reader.feed(answer[at : at + (1 << 16)], 1.0)
        assert len(reader._read) <= LINE_BYTES_MAX + (1 << 18)
    assert reader.told(1.0, whole=False, asked=0).tokens_out == 0


VLLM = b"""# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_running{engine="0",model_name="m"} 7.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="a \\"}\\" name"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
"""
SGLANG = (
    b'sglang:num_running_reqs{model_name="m"} 2.0\nsglang:num_queue_reqs{model_name="m"} 0.0\nsglang:token_usage 0.28'
)
LLAMA = b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 4\nllamacpp:kv_cache_usage_ratio 0.5\n"


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (VLLM, EngineLoad(running=8, waiting=3, kv_used=0.75)),
        (SGLANG, EngineLoad(running=2, waiting=0, kv_used=0.28)),
        (LLAMA, EngineLoad(running=1, waiting=4, kv_used=0.5)),
        (b"vllm:gpu_cache_usage_perc 0.1", EngineLoad(kv_used=0.1)),
        (b"vllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc 7\nsglang:token_usage -1", NOTHING),
        (b"vllm:num_requests_waiting 1e999\nvllm:num_requests_running\n" + b"\xff" * 100, NOTHING),
        (b"<html>vllm:num_requests_waiting 3</html>", NOTHING),
        (b"", NOTHING),
    ],
)
def test_each_engine_is_understood_by_its_own_names(text: bytes, load: EngineLoad) -> None:
    assert engine_load(text) == load


SERVICE = RoutedService(
    job_id="j-1",
    name="chat",
    tenant="t",
    seq=1,
    concurrency=4,
    queue=10,
    timeout=60.0,
    prefix="",
    h2c=False,
    public=False,
    latency=0.5,
    ttft=0.5,
    tpot=0.05,
    models=("m",),
)


def answer(**fields: Any) -> AnswerRead:
    return AnswerRead(**{"status": 200, "streamed": True, "whole": True, "usage": True, "took": 9.0, **fields})


@pytest.mark.parametrize(
    ("read", "late"),
    [
        (answer(first=0.4, each=0.04, tokens_out=50), False),
        (answer(first=0.6, each=0.04, tokens_out=50), True),
        (answer(first=0.4, each=0.06, tokens_out=50), True),
        (answer(streamed=False, took=2.9, begun=2.9, tokens_out=50), False),  # 0.5 s and 49 times 50 ms
        (answer(streamed=False, took=3.0, begun=3.0, tokens_out=50), True),
        (answer(streamed=False, usage=False, took=0.6, begun=0.6), True),  # nothing tells but the first byte
        (answer(first=0.6, whole=False), False),  # its client left
        (answer(first=0.6, status=400), False),
    ],
)
def test_an_objective_in_tokens_is_judged_by_the_first_and_by_the_others(read: AnswerRead, late: bool) -> None:
    queue = ServiceQueue(SERVICE)
    queue.read(read, waited=0.1)
    assert queue.served(0.0).late == late
    assert sum(queue.served(0.0).totals.values()) == (read.whole and read.status == 200)


def test_an_answer_that_is_no_stream_counts_as_the_stream_it_stands_for() -> None:
    assert first_token(answer(streamed=False, took=2.95, tokens_out=50), 0.05) == pytest.approx(0.5)
    assert first_token(answer(streamed=False, took=2.95, begun=2.9, tokens_out=50), None) == 2.9


# the choice of a replica by the beginning of the prompt


def placed(ranks: int) -> ServiceQueue:
    replicas = tuple(
        RoutedReplica(epoch=0, rank=rank, address=f"127.0.0.1:{9000 + rank}", takes=True) for rank in range(ranks)
    )
    return ServiceQueue(structs.replace(SERVICE, replicas=replicas))


def rank_of(queue: ServiceQueue, prompt: str) -> int:
    backend = queue.free(0.0, prompt=prompt)
    assert backend is not None
    return backend.replica.rank


def test_prompts_that_begin_alike_go_to_one_replica_and_few_move_when_one_leaves() -> None:
    before, after = placed(10), placed(10)
    gone = after.service.replicas[3]
    after.know(structs.replace(after.service, replicas=tuple(one for one in after.service.replicas if one is not gone)))
    prompts = [f"{number:x}" for number in range(1000)]
    at = {prompt: rank_of(before, prompt) for prompt in prompts}
    assert at == {prompt: rank_of(before, prompt) for prompt in prompts}
    assert all(at[prompt] == 3 or rank_of(after, prompt) == at[prompt] for prompt in prompts)
    assert max(Counter(at.values()).values()) < 200


@given(ranks=st.integers(2, 12), count=st.integers(1, 40))
def test_no_replica_has_many_more_than_the_others_though_all_prompts_begin_alike(ranks: int, count: int) -> None:
    queue = placed(ranks)
    for number in range(count):
        backend = queue.free(0.0, prompt="same")
        if backend is None:
            assert number >= 4 * ranks, "all have as many as they take"
            break
        loads = [len(one.requests) for one in queue.backends.values()]
        assert len(backend.requests) + 1 <= max(load_bound(sum(loads), ranks), min(loads) + 1)
        backend.requests[number] = InFlightRequest(number, "j-1", backend, 0.0, 0.0, 60.0)


def test_a_prompt_goes_elsewhere_where_its_replica_failed_is_full_or_is_not_heard() -> None:
    queue = placed(3)
    first = queue.free(0.0, prompt="a")
    assert first is not None
    assert queue.free(0.0, first, prompt="a") is not first
    first.replica = structs.replace(first.replica, quiet=True)
    assert queue.free(0.0, prompt="a") is not first
    first.replica = structs.replace(first.replica, quiet=False, takes=False)
    assert queue.free(0.0, prompt="a") is not first


# budgets


def test_a_budget_is_a_minutes_tokens_and_comes_back_with_time() -> None:
    budgets, key = TokenBudgets(), ("j-1", "weft_a")
    budgets.spend(key, 590.0, 600.0, 0.0)
    assert budgets.wait(key, 600.0, 0.0) == 0.0
    budgets.spend(key, 100.0, 600.0, 0.0)
    assert (budgets.wait(key, 600.0, 0.0), budgets.over(key, 600.0, 0.0)) == (pytest.approx(9.0), 90)
    assert budgets.wait(("j-1", "weft_b"), 600.0, 0.0) == 0.0, "each token has its own"
    assert budgets.wait(key, 600.0, 9.1) == 0.0
    budgets.spend(key, -1e9, 600.0, 9.1)
    budgets.spend(key, 601.0, 600.0, 9.1)
    assert budgets.over(key, 600.0, 9.1) == 1, "no more is saved up than a minute"
    for number in range(BUCKETS_MAX + 10):
        budgets.wait(("j-1", str(number)), 600.0, 9.1)
    assert len(budgets._buckets) == BUCKETS_MAX
