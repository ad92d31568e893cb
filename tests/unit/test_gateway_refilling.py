"""After a start the history is there again: from the stored events, and from a Prometheus where one is named."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from math import isnan, nan
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec import structs

from libs.domain.cluster import Node
from libs.domain.job import Job
from libs.store import StoreUnavailableError
from libs.store.accounts import Moment
from libs.store.memory import MemoryStore
from services.gateway.past import past_of
from services.gateway.prometheus import ANSWER_SECONDS_MAX, Prometheus, PrometheusError
from services.gateway.refilling import Refill
from services.gateway.sampling import CLUSTER, Samples
from services.gateway.settings import GatewaySettings
from services.gateway.thinking.rings import COARSE_STEPS, FINE_STEPS, Ring, Shelf
from tests.support.builders import node, spec
from tests.support.held_story import tell_at_random

AT = 1_767_225_600  # a multiple of every step
NOW = AT + 86_400.0 + 2.5


# rings


def test_what_was_before_is_put_before_what_is_known_and_changes_none_of_it() -> None:
    ring = Ring(5, 10)
    ring.put(AT + 50, 7.0)
    ring.put(AT + 60, 8.0)
    ring.fill(AT // 5, [float(number) for number in range(20)])
    found = ring.read(AT // 5, 14)
    assert found[3:10] == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert (found[10], found[11], found[12]) == (7.0, 11.0, 8.0)
    assert all(isnan(value) for value in (*found[:3], found[13]))
    ring.put(AT + 61, 10.0)
    assert ring.read(AT // 5 + 12, 1) == [9.0]


def test_a_history_goes_on_where_what_was_filled_ends() -> None:
    ring = Ring(5, 10)
    ring.fill(AT // 5, [1.0, nan, 3.0])
    ring.put(AT + 12, 5.0)
    ring.put(AT + 20, 6.0)
    assert [value for value in ring.read(AT // 5, 5) if not isnan(value)] == [1.0, 4.0, 6.0]


@pytest.mark.parametrize("begins", [AT - 10_000, AT - 100, AT + 10_000])
def test_a_ring_that_is_filled_from_anywhere_keeps_its_bound(begins: int) -> None:
    ring = Ring(5, 10)
    ring.put(AT, 1.0)
    ring.fill(begins // 5, [2.0] * 5000)
    assert ring.read(AT // 5, 1) == [1.0]
    assert len([value for value in ring.read(AT // 5 - 20_000, 40_000) if not isnan(value)]) <= 10


# events


class Known:
    def __init__(self, nodes: Sequence[Node], holding: Sequence[Job]) -> None:
        self.all, self._holding = nodes, holding
        self.nodes = self

    async def aside(self) -> "Known":
        return self

    def pools_of(self, nodes: "Known") -> list[str]:
        return ["default"]

    async def holding(self, pool: str, *, aside: bool) -> Sequence[Job]:
        return self._holding


async def refilled(store: Any, now: float, prometheus: Prometheus | None = None) -> Samples:
    samples = Samples()
    holding = await MemoryStore.holding_jobs(store, pool="default")
    known = Known(await MemoryStore.nodes(store), holding)
    await Refill(samples, now=lambda: now, prometheus=prometheus).once(store, known)  # type: ignore[arg-type]
    return samples


@pytest.mark.parametrize("seed", range(3))
async def test_gpus_held_and_jobs_that_waited_come_again_from_the_events(seed: int) -> None:
    store = MemoryStore()
    ends = await tell_at_random(store, store, random.Random(seed), begins=float(AT), jobs=6, things=200)
    samples = await refilled(store, ends)
    last = int(ends // 5)
    held: list[float] = []
    queued: list[float] = []
    for second in range(AT, last * 5):
        told = await store.told_until(Moment(at=second))
        ids = dict.fromkeys(event.subject_id for event in told if event.topic == "jobs")
        past = past_of(told, await store.jobs_of(list(ids)), Moment(at=second))
        held.append(sum(job.gpus_held for job in past.jobs if job.state.holding))
        queued.append(sum(not job.state.holding for job in past.jobs))
    for name, by_second in (("held", held), ("queued", queued)):
        expected = [sum(by_second[n : n + 5]) / 5 for n in range(0, len(by_second), 5)][-FINE_STEPS + 1 :]
        found = samples.cluster.get(CLUSTER)[name].read((last - len(expected)) * 5, len(expected), 5)
        assert found == pytest.approx(expected, abs=1e-5)
        assert any(expected)
    for job in await store.holding_jobs(pool="default"):
        assert job.placement is not None
        series = samples.jobs.get(job.id).get("replicas")
        if ends - max(job.held_since, job.sized_at or 0.0) > 10:
            assert series is not None
            assert series.read((last - 1) * 5, 1, 5) == [len(job.placement.staying)]


class Away(MemoryStore):
    away = True

    async def jobs_between(self, begins: float, *, limit: int) -> list[str]:
        if self.away:
            raise StoreUnavailableError("on purpose")
        return await super().jobs_between(begins, limit=limit)


async def test_a_store_that_is_away_is_asked_again_and_what_was_filled_is_not_filled_twice() -> None:
    store, samples = Away(), Samples()
    await store.submit(spec(), job_id="j-1", tenant="a", key=None, at=NOW - 100)
    refill = Refill(samples, now=lambda: NOW, prometheus=None)
    with pytest.raises(StoreUnavailableError):
        await refill.once(store, Known([], []))  # type: ignore[arg-type]
    assert samples.cluster.subjects() == []
    store.away = False
    await refill.once(store, Known([], []))  # type: ignore[arg-type]
    assert samples.cluster.get(CLUSTER)["queued"].read(int(NOW // 5) * 5 - 5, 1, 5) == [1.0]
    store.away = True
    await refill.once(store, Known([], []))  # type: ignore[arg-type]


# Prometheus


def value_at(expression: str, labels: dict[str, str], at: float) -> float:
    """What the node would have told then."""
    return len(expression) / 1000 + int(labels.get("gpu", 0)) + (at % 7200) / 10_000


class ToldPrometheus:
    """Answers range queries over HTTP as Prometheus does: matrices of strings, one value for each step of the range."""

    def __init__(self, lines: Sequence[dict[str, str]]) -> None:
        self.lines = lines
        self.asked: list[dict[str, str]] = []
        self.instead: Callable[[web.Request], Any] | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.path == "/api/v1/query_range"
        self.asked.append(dict(request.query))
        if self.instead is not None:
            made: web.StreamResponse = await self.instead(request)
            return made
        expression = request.query["query"]
        start, end, step = (float(request.query[name]) for name in ("start", "end", "step"))
        assert (end - start) / step <= 11_000  # more Prometheus refuses
        times = [start + number * step for number in range(int((end - start) / step) + 1)]
        of_gpus = "gpu" in expression
        result: list[dict[str, Any]] = [
            {
                "metric": {"__name__": "x", **labels},
                "values": [[at, str(value_at(expression, labels, at))] for at in times],
            }
            for labels in self.lines
            if ("gpu" in labels) == of_gpus
        ]
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": result}})


@asynccontextmanager
async def told_prometheus(*lines: dict[str, str]) -> AsyncIterator[tuple[ToldPrometheus, str]]:
    told = ToldPrometheus(lines)
    app = web.Application()
    app.router.add_route("GET", "/{path:.*}", told.answer)
    async with TestServer(app) as server:
        yield told, str(server.make_url("")).rstrip("/")


NODES = [node("node-1", gpus=2), node("node-2", gpus=1)]
LINES = ({"node": "node-1"}, {"node": "node-1", "gpu": "0"}, {"node": "node-1", "gpu": "1"})


async def test_gpus_and_nodes_come_again_from_prometheus_each_value_in_its_step() -> None:
    shelf = Shelf(1000, 100)
    async with told_prometheus(*LINES) as (told, url):
        count = await Prometheus(url).fill(NODES, shelf, now=NOW)
    assert count == len(told.asked) // 4 * (2 * 2 + 2 * 1)
    expressions = {asked["query"] for asked in told.asked}
    assert "weft_gpu_utilisation_ratio" in expressions
    assert len(expressions) == 4
    labels = LINES[2]
    for steps, seconds in ((FINE_STEPS, 5), (COARSE_STEPS, 60)):
        begins = int(NOW // seconds) * seconds - steps * seconds
        found = shelf.get("node-1")["gpu.1.used"].read(begins, steps, seconds)
        ends = [begins + (number + 1) * seconds for number in range(steps)]
        expected = [value_at("weft_gpu_utilisation_ratio", labels, at) for at in ends]
        assert found == pytest.approx(expected, rel=1e-4)
    assert shelf.get("node-2") == {}


async def test_nodes_and_gpus_that_are_not_there_and_values_that_are_none_fill_nothing() -> None:
    async def odd(request: web.Request) -> web.Response:
        at = float(request.query["start"])
        words = ["NaN", "+Inf", "1e400", "-1e300", "x", ""]
        values = [[at + number * float(request.query["step"]), word] for number, word in enumerate(words)]
        values += [[1e300, "1"], [-1e300, "1"], [0, "1"]]
        metrics: list[dict[str, str]] = [
            {"node": "node-1", "gpu": "0"},
            {"node": "node-1", "gpu": "7"},
            {"node": "../x", "gpu": "0"},
            {"gpu": "0"},
            {},
            *({"node": f"made-up-{number}"} for number in range(500)),
        ]
        result = [{"metric": metric, "values": values} for metric in metrics]
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": result}})

    shelf = Shelf(1000, 100)
    async with told_prometheus() as (told, url):
        told.instead = odd
        await Prometheus(url).fill(NODES, shelf, now=NOW)
    assert shelf.subjects() in ([], ["node-1"])
    for series in shelf.get("node-1").values():
        assert series.read(AT, COARSE_STEPS, 60) == [None] * COARSE_STEPS


async def _status(request: web.Request) -> web.Response:
    return web.json_response({"status": "error", "error": "too many"}, status=422)


async def _text(request: web.Request) -> web.Response:
    return web.Response(text="<html>not found</html>")


async def _other(request: web.Request) -> web.Response:
    return web.json_response({"status": "success", "data": {"result": [{"metric": {}, "values": [["x", 1]]}]}})


async def _deep(request: web.Request) -> web.Response:
    return web.Response(text='{"data": {"result": ' + "[" * 100_000)


async def _away(request: web.Request) -> web.Response:
    raise web.HTTPFound("http://127.0.0.1:1/")


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(100):
        await response.write(b" " * 65536)
    return response


async def _silent(request: web.Request) -> web.Response:
    await asyncio.sleep(30)
    raise AssertionError("it was waited for")


@pytest.mark.parametrize("odd", [_status, _text, _other, _deep, _away, _endless, _silent])
async def test_a_prometheus_that_answers_oddly_or_not_at_all_is_given_up_within_its_bound(odd: Any) -> None:
    shelf = Shelf(1000, 100)
    async with told_prometheus(*LINES) as (told, url):
        told.instead = odd
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            with pytest.raises(PrometheusError):
                await Prometheus(url, seconds_max=1.0, bytes_max=1 << 20).fill(NODES, shelf, now=NOW)
    assert shelf.subjects() == []


async def test_without_prometheus_the_rest_comes_all_the_same() -> None:
    store = MemoryStore()
    await store.submit(spec(), job_id="j-1", tenant="a", key=None, at=NOW - 100)
    samples = await refilled(store, NOW, Prometheus("http://127.0.0.1:1"))
    assert samples.cluster.get(CLUSTER)["queued"].read(int(NOW // 5) * 5 - 5, 1, 5) == [1.0]


def test_no_prometheus_is_asked_unless_a_setting_names_one() -> None:
    assert GatewaySettings().prometheus_url == ""
    with pytest.raises(ValueError, match="GATEWAY_PROMETHEUS_URL"):
        structs.replace(GatewaySettings(), prometheus_url="localhost:9090/x?y")
