"""`weft batch` over a real router: killed and continued, beside requests of people, and with lines that are broken."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import aiohttp
import aiohttp.web
import pytest

from tests.support.gateway import until
from tests.support.routers import Town
from weft.domain.job import Job

ASKED = "/v1/completions"


class Engine:
    """Answers prompts that are numbers; each answer waits for `may`. `asked`: how often each prompt came."""

    def __init__(self, *, may: int = 1_000_000) -> None:
        self.may = asyncio.Semaphore(may)
        self.asked: Counter[str] = Counter()
        self.headers: list[dict[str, str]] = []

    async def __call__(self, request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        body = await request.json()
        prompt = str(body["prompt"])
        self.asked[prompt] += 1
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        await self.may.acquire()
        if prompt == "bad":
            error = {"message": "`prompt` must be a number", "type": "BadRequestError", "code": 400, "param": "prompt"}
            return aiohttp.web.json_response({"error": error}, status=400)
        return aiohttp.web.json_response({"object": "text_completion", "model": body["model"], "text": prompt})


class Batch:
    """One run of `weft batch`."""

    def __init__(self, there: Town, folder: Path) -> None:
        self.there = there
        self.requests, self.answers = folder / "in.jsonl", folder / "out.jsonl"

    async def start(self, model: str = "chat", *more: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "weftd.cli", "batch", model, str(self.requests), str(self.answers)),
            *("--router", self.there.url, *more),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "WEFT_URL": "http://127.0.0.1:9", "WEFT_TOKEN": self.there.tokens["alice"]},
        )

    async def run(self, model: str = "chat", *more: str) -> tuple[int | None, str]:
        process = await self.start(model, *more)
        async with asyncio.timeout(60):
            out, error = await process.communicate()
        return process.returncode, (out + error).decode()

    def records(self) -> dict[int, dict[str, object]]:
        records = [json.loads(line) for line in self.answers.read_bytes().splitlines()]
        assert len({record["line"] for record in records}) == len(records), "each line has one record"
        return {record["line"]: record for record in records}


@pytest.fixture
def batch(there: Town, tmp_path: Path) -> Batch:
    return Batch(there, tmp_path)


async def served(there: Town, engine: Engine, **rules: object) -> Job:
    job = await there.service(public=False, model={"name": "chat"}, **{"timeout": "20s", "concurrency": 4, **rules})
    await there.tell((await there.replica(0, engine)).endpoint(job))
    await there.known(job, 0)
    return job


async def test_a_batch_that_was_killed_goes_on_and_asks_no_answered_line_again(there: Town, batch: Batch) -> None:
    engine = Engine(may=7)
    await served(there, engine)
    batch.requests.write_text("".join(f'{{"prompt": "{number}"}}\n' for number in range(1, 21)))
    process = await batch.start()
    await until(lambda: batch.answers.exists() and batch.answers.read_bytes().count(b"\n") == 7)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    answered = {str(record["response"]["body"]["text"]) for record in batch.records().values()}  # type: ignore[index]
    with batch.answers.open("ab") as file:
        file.write(batch.answers.read_bytes().splitlines()[0][:90])  # as if it had been killed while it wrote
    engine.may = asyncio.Semaphore(1000)
    assert await batch.run() == (0, "20 of 20 lines have an answer; 7 had one before\n")
    records = batch.records()
    assert {number: record["response"]["body"]["text"] for number, record in records.items()} == {  # type: ignore[index]
        number: str(number) for number in range(1, 21)
    }
    assert {prompt for prompt, times in engine.asked.items() if times > 1}.isdisjoint(answered)
    asked = engine.asked.total()
    assert await batch.run() == (0, "20 of 20 lines have an answer; 20 had one before\n")
    assert engine.asked.total() == asked
    assert all("weft-priority" not in headers for headers in engine.headers)


async def test_each_broken_line_has_its_sentence_and_the_rest_is_answered(there: Town, batch: Batch) -> None:
    engine = Engine()
    await served(there, engine)
    lines = ['{"prompt": "1", "custom_id": "one"}', "{", "", '{"prompt": "bad"}', '{"prompt": "2", "model": "gone"}']
    lines += [json.dumps({"custom_id": "a", "method": "POST", "url": ASKED, "body": {"prompt": "3"}})]
    batch.requests.write_text("\n".join(lines))
    status, told = await batch.run()
    assert (status, told.splitlines()[0]) == (1, "2 of 5 lines have an answer")
    assert "3 lines have an error" in told
    records = batch.records()
    assert {number: record["custom_id"] for number, record in records.items()} == {
        1: "one",
        2: "line-2",
        4: "line-4",
        5: "line-5",
        6: "a",
    }
    errors = {number: record["error"] for number, record in records.items() if record["error"]}
    assert str(errors[2]["message"]).startswith("line 2: expected a JSON object")  # type: ignore[index]
    assert errors[4] == {"code": "request_failed", "message": "line 4: `prompt` must be a number"}
    assert records[4]["response"]["status_code"] == 400  # type: ignore[index]
    assert "line 5: no service of this tenant serves the model 'gone'" in str(errors[5]["message"])  # type: ignore[index]
    lines[1] = '{"prompt": "4"}'
    batch.requests.write_text("\n".join(lines))
    assert (await batch.run())[1].splitlines()[0] == "3 of 5 lines have an answer; 2 had one before"
    assert engine.asked == {"1": 1, "bad": 2, "3": 1, "4": 1}
    lines[0] = '{"prompt": "other"}'
    batch.requests.write_text("\n".join(lines))
    before = batch.answers.read_bytes()
    status, told = await batch.run()
    assert (status, "has the answer to another line 1" in told) == (1, True)
    assert batch.answers.read_bytes() == before
    status, told = await batch.run("gone")
    assert (status, "no service of this tenant serves the model 'gone'" in told) == (1, True)
    status, told = await batch.run("a model")
    assert (status, "MODEL: expected the name of a model, got 'a model'" in told) == (2, True)


async def test_requests_of_people_come_first_and_leave_the_batch_the_rest(
    there: Town, batch: Batch, http: aiohttp.ClientSession
) -> None:
    """One place of four stays free of the batch. While people's requests fill the replica and wait, none of it runs."""
    engine = Engine(may=0)
    job = await served(there, engine)
    batch.requests.write_text("".join(f'{{"prompt": "{number}"}}\n' for number in range(1, 9)))
    process = await batch.start()
    await until(lambda: there.replicas[0].now == 3)
    token = {"Authorization": f"Bearer {there.tokens['alice']}"}

    async def person(number: int) -> int:
        data = json.dumps({"model": "chat", "prompt": f"p{number}"})
        async with http.post(f"{there.url}{ASKED}", data=data, headers=token) as answer:
            return answer.status

    people = [asyncio.create_task(person(number)) for number in range(6)]
    await until(lambda: there.replicas[0].now == 4 and getattr(there.last(job), "queued", 0) == 5)
    for released in range(1, 4):
        engine.may.release()
        await until(lambda released=released: engine.asked.total() == 4 + released)  # type: ignore[misc]
    assert sum(prompt.startswith("p") for prompt in engine.asked) == 4, "each place that came free is a person's"
    url = f"{there.url}{ASKED}"
    late = {**token, "Weft-Priority": "batch"}
    async with http.post(url, data='{"model": "chat", "prompt": "x"}', headers=late) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"], answer.headers["Retry-After"]) == (429, "rate_limit_exceeded", "1")
    async with http.post(url, data='{"model": "chat", "prompt": "x"}', headers={**token, "Weft-Priority": "low"}) as no:
        assert (no.status, (await no.json())["error"]["message"]) == (400, "Weft-Priority must be batch, got 'low'")
    for _ in range(1000):
        engine.may.release()
    assert await asyncio.gather(*people) == [200] * 6
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    assert out == b"8 of 8 lines have an answer\n"
    assert there.last(job).arrived == 6, "the batch is not load that replicas are added for"
    assert there.replicas[0].most == 4


async def test_a_batch_waits_for_a_service_at_zero_and_ends_with_a_model_that_is_gone(
    there: Town, batch: Batch
) -> None:
    engine = Engine()
    job = await there.service(public=False, model={"name": "chat"}, timeout="20s", concurrency=4)
    batch.requests.write_text('{"prompt": "1"}\n{"prompt": "2"}\n')
    process = await batch.start()
    await until(lambda: getattr(there.last(job), "queued", 0) == 1)
    await there.tell((await there.replica(0, engine)).endpoint(job))
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    assert out == b"2 of 2 lines have an answer\n"
    status, told = await batch.run("chat", "--at-once", "0")
    assert (status, "--at-once: expected 1 to 512" in told) == (2, True)
    there.tokens["alice"] = "weft_unknown"
    status, told = await batch.run()
    assert (status, "this token is not known" in told) == (1, True)
