"""`weft batch`: what a line asks, how fast requests are sent, and the file of answers that a later run continues."""

import json
import os
from pathlib import Path

import pytest

from weftd.cli.cli_error import CliError
from weftd.cli.services.batch.answers import AnswerFile, Error, Response
from weftd.cli.services.batch.lines import LINE_BYTES_MAX, Broken, Request, line_of
from weftd.cli.services.batch.pace import PAUSE_SECONDS_MAX, Pace
from weftd.cli.services.batch.sending import compact


def request_of(line: object) -> Request:
    text = line if isinstance(line, bytes) else json.dumps(line).encode()
    made = line_of(text, 3, "chat")
    assert isinstance(made, Request), made
    return made


def openai_line(**fields: object) -> dict[str, object]:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    return {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body, **fields}


@pytest.mark.parametrize(
    ("line", "custom_id", "path", "body"),
    [
        ({"prompt": "a", "n": 1e3}, "line-3", "/v1/completions", {"model": "chat", "prompt": "a", "n": 1000.0}),
        ({"messages": [], "custom_id": "x"}, "x", "/v1/chat/completions", {"model": "chat", "messages": []}),
        ({"input": ["a"], "model": "tei"}, "line-3", "/v1/embeddings", {"model": "tei", "input": ["a"]}),
        (openai_line(body={"stream": False}), "a", "/v1/chat/completions", {"model": "chat", "stream": False}),
        (
            openai_line(url="/v1/responses", body={"input": "é", "model": "sql"}),
            *("a", "/v1/responses", {"model": "sql", "input": "é"}),
        ),
    ],
)
def test_a_line_asks_in_openais_form_or_as_a_body(line: object, custom_id: str, path: str, body: object) -> None:
    made = request_of(line)
    assert (made.custom_id, made.path, json.loads(made.body)) == (custom_id, path, body)
    assert made.body.startswith(b'{"model":'), "the router finds it at once"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "expected a JSON object; "),
        (b"[]", "expected a JSON object"),
        (b"\xff\xfe", "expected a JSON object; "),
        (b'{"a": ' + b"[" * 100_000, "expected "),
        (b'{"prompt": "a", "input": "b"}', "expected one of messages, prompt, input"),
        (b'{"model": "chat"}', "expected one of messages, prompt, input"),
        (b'{"prompt": "a", "stream": true}', "`stream` must be false"),
        (b'{"prompt": "a", "model": 7}', "`model` must be a text, got 7"),
        (b'{"prompt": "a", "model": ""}', "`model` must be the name of a model"),
        (b'{"prompt": "a", "custom_id": ""}', "`custom_id` must have 1 to 512 characters, got 0"),
        (json.dumps(openai_line(method="GET")).encode(), "`method` must be POST, got GET"),
        (json.dumps(openai_line(url="/v1/files")).encode(), "`url` must be one of /v1/chat/completions, "),
        (json.dumps(openai_line(body="x")).encode(), "`body` must be a JSON object"),
        (json.dumps(openai_line(boby=1)).encode(), "boby is no field of a line"),
        (b'{"url": "/v1/completions", "method": "POST"}', "`custom_id` is missing"),
        (b'"' + b"x" * LINE_BYTES_MAX, f"it has more than {LINE_BYTES_MAX} bytes"),
    ],
    ids=range(16),
)
def test_what_is_wrong_with_a_line_is_one_sentence_that_names_the_field(text: bytes, words: str) -> None:
    broken = line_of(text, 3, "chat")
    assert isinstance(broken, Broken)
    assert broken.why.startswith(words)
    assert "\n" not in broken.why
    assert len(broken.why) < 300


def test_the_pace_grows_with_answers_and_halves_once_for_each_round_of_refusals() -> None:
    pace = Pace(16)
    assert pace.at_once == 4
    for _ in range(300):
        pace.answered()
    assert pace.at_once == 16
    for _ in range(16):
        pace.refused(sent_at=1.0, now=2.0, retry_after=0.0, chance=0.0)
    assert (pace.at_once, pace.paused_until) == (8, 2.5)
    pauses = []
    for now in range(10, 510, 50):
        pace.refused(sent_at=now - 1.0, now=float(now), retry_after=1.0, chance=1.0)
        pauses.append(pace.paused_until - now)
    assert (pauses[0], pauses[-1], pace.at_once) == (2.0, PAUSE_SECONDS_MAX, 1)
    pace.answered()
    pace.refused(sent_at=600.0, now=601.0, retry_after=99_999.0, chance=0.0)
    assert pace.paused_until == 601.0 + PAUSE_SECONDS_MAX, "a server cannot stop a batch for ever"
    assert Pace(1).at_once == 1


def written(path: Path, *numbers: int, error: Error | None = None) -> None:
    with AnswerFile(str(path)) as answers:
        answers.begin()
        for number in numbers:
            body = compact(b'{\n "n": [1,\n 2]}')
            assert body is not None
            response = None if error else Response(200, "", body)
            answers.write(request_of({"prompt": str(number)}), response=response, error=error)


def test_a_later_run_keeps_answers_and_takes_out_errors_and_what_was_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    written(path, 1)
    answer = path.read_bytes()
    assert json.loads(answer)["response"]["body"] == {"n": [1, 2]}
    assert answer.count(b"\n") == 1
    path.chmod(0o600)
    for torn in (1, 12, 13, 90, len(answer) - 1):
        path.write_bytes(answer + answer[:torn])
        with AnswerFile(str(path)) as answers:
            assert len(answers.answered) == 1
            assert path.read_bytes() == answer + answer[:torn]
            answers.begin()
        assert path.read_bytes() == answer
    written(path, 2, error=Error("x", "line 3: it is broken"))
    assert path.read_bytes().count(b"\n") == 2
    written(path)
    assert path.read_bytes() == answer
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["out.jsonl"]


@pytest.mark.parametrize("content", [b"my notes", b"{}\n", b'{"id": "other-1", "response": null, "error": null}\n'])
def test_a_file_of_other_content_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(CliError, match="has other content, in its line 1: name a new file"), AnswerFile(str(path)):
        pass
    assert path.read_bytes() == content


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with (
        AnswerFile(str(path)),
        pytest.raises(CliError, match="another `weft batch` writes"),
        AnswerFile(str(path)),
    ):
        pass
    written(path, 1, error=Error("x", "y"))
    with AnswerFile(str(path)) as answers:
        answers.begin()
        assert path.read_bytes() == b"", "it is another file now"
        with pytest.raises(CliError, match="another `weft batch` writes"), AnswerFile(str(path)):
            pass
