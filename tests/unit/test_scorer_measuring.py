"""What is due is submitted as a user would, and what comes of a submission that is refused or not answered."""

import logging
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tests.support.benchmarks import bench_job, bench_node, gpu, measurement
from tests.support.builders import job
from tests.support.doubles.store import MemoryStore
from weft.bus import NoAnswerError
from weft.domain.decoding.spec_decoder import decode_spec
from weft.domain.job import Job
from weft.domain.spec import JobSpec
from weft.messages.asks import SubmitAnswered
from weft.messages.signals import NodeSampled
from weft.service.config import read_secret
from weft.store import StoreUnavailableError
from weftd.scorer.measuring import Measuring
from weftd.scorer.settings import ScorerSettings

OK = SubmitAnswered(job_id="j-1", created=True)


class Gateway:
    """Answers as the test says, and keeps what it was asked."""

    def __init__(self, answer: SubmitAnswered | None = OK) -> None:
        self.answer = answer
        self.specs: list[JobSpec] = []
        self.headers: list[Mapping[str, str]] = []

    async def request_raw(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, seconds_max: float
    ) -> bytes:
        assert subject == "weft.submit"
        self.specs.append(decode_spec(payload))
        self.headers.append(headers or {})
        if self.answer is None:
            raise NoAnswerError("nobody listens on weft.submit")
        return msgspec.json.encode(self.answer)


class Ended(MemoryStore):
    """A store in which these jobs have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[Job] = []
        self.asked: list[tuple[float, float]] = []
        self.away = False

    async def ended_jobs(self, *, tenants: object, since: float, until: float, label: str) -> list[Job]:
        if self.away:
            raise StoreUnavailableError("ended_jobs: canceling statement due to statement timeout")
        self.asked.append((since, until))
        found = [job for job in self.ended if since <= (job.ended_at or 0.0) < until]
        return sorted(found, key=lambda job: (job.ended_at or 0.0, job.seq))


NODES = [bench_node("node-1"), bench_node("node-2"), bench_node("node-3")]


def measuring(
    gateway: Gateway, store: Ended, *, token: Callable[[], str] | None = lambda: "secret", **settings: object
) -> Measuring:
    return Measuring(bus=gateway, store=store, token=token, settings=ScorerSettings(**settings))  # type: ignore[arg-type]


async def test_what_is_due_is_submitted_with_the_token_and_a_key() -> None:
    gateway, store = Gateway(), Ended()
    made = measuring(gateway, store)
    await made.turn(NODES, (), now=1000.0)
    assert [spec.pin.node for spec in gateway.specs if spec.pin] == ["node-1", "node-2"]
    assert [headers["Authorization"] for headers in gateway.headers] == ["Bearer secret"] * 2
    assert gateway.headers[0]["Idempotency-Key"] == "bench-EMULATED-node-1-0-joined-0"
    await made.turn(NODES, (), now=1005.0)
    assert len(gateway.specs) == 2


async def test_results_are_read_once_and_then_those_that_are_new() -> None:
    gateway, store = Gateway(), Ended()
    made = measuring(gateway, store)
    store.ended = [bench_job(gpu("node-1"), "node-1", measurement(), at=900.0), job("j-other", ended_at=950.0)]
    assert [one.node_id for one in await made.turn(NODES, (), now=1000.0)] == ["node-1"]
    assert await made.turn(NODES, (), now=1005.0) == []
    store.ended.append(bench_job(gpu("node-2"), "node-2", measurement(), at=1006.0))
    assert [one.node_id for one in await made.turn(NODES, (), now=1010.0)] == ["node-2"]
    assert store.asked[0][0] == 1000.0 - 30 * 86400.0
    assert store.asked[-1] == (1005.0 - 60.0, 1010.0 + 60.0)  # only what may be news


async def test_the_past_is_read_a_day_at_a_time_without_a_gap() -> None:
    store = Ended()
    await measuring(Gateway(), store).turn(NODES, (), now=1000.0)
    assert all(until - since <= 86400.0 for since, until in store.asked)
    assert all(since < before for (_, before), (since, _) in pairwise(store.asked))


async def test_results_that_cannot_be_read_stop_no_scoring_and_submit_nothing(caplog: pytest.LogCaptureFixture) -> None:
    gateway, store = Gateway(), Ended()
    store.ended = [bench_job(gpu("node-1"), "node-1", measurement(), at=900.0)]
    store.away = True
    made = measuring(gateway, store)
    with caplog.at_level(logging.WARNING):
        for now in (1000.0, 1005.0):
            assert await made.turn(NODES, (), now=now) == []
    assert gateway.specs == []  # who knows whether they were measured
    assert len(caplog.records) == 1
    store.away = False
    assert [one.node_id for one in await made.turn(NODES, (), now=1010.0)] == ["node-1"]
    assert len(gateway.specs) > 0


async def test_a_gpu_that_is_held_is_not_asked_for() -> None:
    gateway, store = Gateway(), Ended()
    holding = [bench_job(gpu("node-1"), "node-1", measurement(), at=1.0)]
    await measuring(gateway, store).turn(NODES, holding, now=1000.0)
    assert [spec.pin.node for spec in gateway.specs if spec.pin] == ["node-2", "node-3"]


@pytest.mark.parametrize(
    ("gateway", "missing", "why"),
    [
        (Gateway(SubmitAnswered(error="unknown token", field="Authorization")), False, "unknown token"),
        (Gateway(None), False, "nobody listens on weft.submit"),
        (Gateway(), True, "cannot read"),
    ],
)
async def test_one_that_cannot_be_submitted_is_tried_again_later_and_said_once(
    gateway: Gateway, missing: bool, why: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    store, file = Ended(), tmp_path / "token"
    if not missing:
        file.write_text("secret")
    made = measuring(gateway, store, token=lambda: read_secret(str(file)))
    with caplog.at_level(logging.WARNING):
        for now in range(1000, 1100, 5):
            await made.turn(NODES[:1], (), now=float(now))
    (said,) = [record.message for record in caplog.records]
    assert said.startswith("a benchmark is not submitted, and tried again later: ")
    assert why in said
    assert len(gateway.specs) <= 1
    gateway.answer = OK
    file.write_text("secret")
    await made.turn(NODES[:1], (), now=2000.0)
    assert gateway.headers[-1]["Idempotency-Key"] == "bench-EMULATED-node-1-0-joined-1"


@pytest.mark.parametrize(
    "answer",
    [SubmitAnswered(job_id="j-old"), SubmitAnswered(error="the key was used for another job", field="Idempotency-Key")],
)
async def test_a_key_that_was_used_by_a_scorer_before_is_skipped_at_once(answer: SubmitAnswered) -> None:
    gateway = Gateway(answer)
    made = measuring(gateway, Ended())
    for now in (1000.0, 1005.0):
        await made.turn(NODES[:1], (), now=now)
    gateway.answer = OK
    for now in (1010.0, 1015.0):
        await made.turn(NODES[:1], (), now=now)
    assert [one["Idempotency-Key"][-1] for one in gateway.headers] == ["0", "1", "2"]


@pytest.mark.parametrize(("token", "benchmarks"), [(None, "on"), (lambda: "secret", "off")])
async def test_without_a_token_or_switched_off_nothing_is_submitted_and_results_count(
    token: Callable[[], str] | None, benchmarks: str, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, store = Gateway(), Ended()
    store.ended = [bench_job(gpu("node-1"), "node-1", measurement(), at=900.0)]
    with caplog.at_level(logging.WARNING):
        made = measuring(gateway, store, token=token, benchmarks=benchmarks)
        assert len(await made.turn(NODES, (), now=1000.0)) == 1
    assert gateway.specs == []
    assert len(made.benchmarks.scores()) == 3
    assert [record.message for record in caplog.records] == (
        ["GPUs are measured only on request: SCORER_TOKEN_FILE names no file with a token"] if token is None else []
    )


async def test_nodes_with_containers_and_no_image_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    gateway, store = Gateway(), Ended()
    made = measuring(gateway, store)
    with caplog.at_level(logging.WARNING):
        for now in (1000.0, 1005.0):
            await made.turn([bench_node("node-1", runtime="docker")], (), now=now)
    assert len(caplog.records) == 1
    assert "SCORER_BENCHMARK_IMAGE" in caplog.records[0].message


async def test_what_telemetry_tells_is_known_when_it_is_submitted() -> None:
    gateway, store = Gateway(), Ended()
    made = measuring(gateway, store)
    node = bench_node("node-1", emulated=False)
    await made.turn([node], (), now=1000.0)
    assert gateway.specs == []
    made.hear(
        msgspec.convert(
            {
                "node_id": "node-1",
                "pool": "default",
                "at": 1.0,
                "host": {"cpus": 1, "memory_total": 1, "memory_used": 1},
                "gpus": [{"index": 0, "uuid": "GPU-node-1-0", "model": "H200", "driver": "580.1"}],
            },
            NodeSampled,
        )
    )
    await made.turn([node], (), now=1005.0)
    assert gateway.specs[0].labels["weft/benchmark-driver"] == "580.1"
