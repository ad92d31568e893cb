"""Answers of engines that were asked to load an adapter, and the sentences for clients."""

import json

import pytest

from weftd.router.thinking.adapters import NO_SUCH_PATH, refusal_of

ALREADY = "The lora adapter 'sql' has already been loaded. If you want to load the adapter in place, set 'load_inplace'"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"Success: LoRA adapter 'sql' added successfully."),
        (400, json.dumps({"error": {"message": ALREADY, "type": "InvalidUserInput", "code": 400}}).encode()),
        (400, json.dumps({"object": "error", "message": ALREADY}).encode()),
        (400, ALREADY.encode()),
    ],
)
def test_an_adapter_that_is_loaded_or_was_already_is_there(status: int, body: bytes) -> None:
    assert refusal_of("sql", status, body) is None


@pytest.mark.parametrize(
    ("status", "body", "answered", "words"),
    [
        (404, b'{"error": {"message": "No adapter found for /a"}}', 404, "No adapter found for /a"),
        (404, b'{"detail": "Not Found"}', 404, NO_SUCH_PATH),
        (405, b"", 404, NO_SUCH_PATH),
        (400, b'{"error": {"message": 7}}', 404, ""),
        (422, b"[" * 100_000, 404, "[[["),
        (302, b"\xff\x1b[31m", 404, "\ufffd [31m"),
        (500, b'{"error": "out of memory"}', 502, "the engine answered 500: out of memory"),
    ],
    ids=range(7),
)
def test_other_answers_are_one_short_sentence(status: int, body: bytes, answered: int, words: str) -> None:
    refusal = refusal_of("sql", status, body)
    assert refusal is not None
    assert (refusal.status, refusal.param) == (answered, "model")
    assert refusal.sentence.startswith(f"the adapter 'sql' could not be loaded: {words}")
    assert len(refusal.sentence) < 400
    assert refusal.sentence.isprintable()
