"""The last day of nodes and GPUs from a Prometheus that scrapes their telemetry. Every wait and answer is bounded.

Its labels are believed: what may be scraped into it may tell of any node.
"""

import asyncio
from collections.abc import Iterator, Sequence
from math import nan
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from libs.domain.cluster import Node
from services.gateway.thinking.rings import COARSE_SECONDS, COARSE_STEPS, FINE_SECONDS, FINE_STEPS, Shelf

SECONDS_MAX = 120.0  # in all
ANSWER_SECONDS_MAX = 15.0
ANSWER_BYTES_MAX = 64 << 20
STEPS_AT_ONCE = 240  # a quarter of a million points from a thousand GPUs

GPU_FIGURES = {"used": "weft_gpu_utilisation_ratio", "memory_used": "weft_gpu_memory_used_bytes"}
NODE_FIGURES = {
    "cpu": "weft_node_cpus_used / weft_node_cpus",
    "memory": "weft_node_memory_used_bytes / weft_node_memory_total_bytes",
}


class PrometheusError(Exception):
    """It did not answer in time, or not as Prometheus does."""


class _Line(Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Lines(Struct):
    result: list[_Line]


class _Answer(Struct):
    """Of a range query, as Prometheus has it: https://prometheus.io/docs/prometheus/latest/querying/api/."""

    data: _Lines
    status: str = "success"


class Prometheus:
    def __init__(self, url: str, *, seconds_max: float = SECONDS_MAX, bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._url = f"{url.rstrip('/')}/api/v1/query_range"
        self._seconds_max = seconds_max
        self._bytes_max = bytes_max

    async def fill(self, nodes: Sequence[Node], shelf: Shelf, *, now: float) -> int:
        """Fill what is known of these nodes and their GPUs; returns how many series came. Raises PrometheusError."""
        real = {node.id: {str(gpu.index) for gpu in node.capacity.gpus} for node in nodes}
        count = 0
        try:
            async with (
                asyncio.timeout(self._seconds_max),
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)) as http,
            ):
                for query, begins, steps, seconds in _queries(now):
                    for line in await self._lines(http, query.expression, begins, steps, seconds):
                        node, gpu = line.metric.get("node", ""), line.metric.get("gpu")
                        if node not in real or (query.of_gpus and gpu not in real[node]):
                            continue
                        name = f"gpu.{gpu}.{query.name}" if query.of_gpus else query.name
                        shelf.fill(node, name, begins, _values(line, begins, steps, seconds), seconds)
                        count += 1
        except TimeoutError:
            raise PrometheusError("Prometheus did not answer in time") from None
        except aiohttp.ClientError as error:
            raise PrometheusError(f"Prometheus: {type(error).__name__} {error}") from error
        return count

    async def _lines(
        self, http: aiohttp.ClientSession, expression: str, begins: int, steps: int, seconds: int
    ) -> list[_Line]:
        # A value at the end of a step is what was sampled in it.
        asked = {
            "query": expression,
            "start": str(begins + seconds),
            "end": str(begins + steps * seconds),
            "step": str(seconds),
        }
        async with http.get(self._url, params=asked, allow_redirects=False) as response:
            if response.status != 200:
                raise PrometheusError(f"Prometheus answered {response.status}")
            body = bytearray()
            async for part in response.content.iter_chunked(1 << 16):
                body += part
                if len(body) > self._bytes_max:
                    raise PrometheusError(f"an answer of Prometheus is larger than {self._bytes_max} bytes")
        try:
            return (await asyncio.to_thread(msgspec.json.decode, bytes(body), type=_Answer)).data.result
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PrometheusError(f"this is no answer of Prometheus: {error}") from error


class _Query(Struct, frozen=True):
    name: str
    expression: str
    of_gpus: bool


def _queries(now: float) -> Iterator[tuple[_Query, int, int, int]]:
    """Each figure in parts: when a part begins, how many steps it has, and their seconds. The newest come first."""
    figures = [
        *(_Query(name, expression, True) for name, expression in GPU_FIGURES.items()),
        *(_Query(name, expression, False) for name, expression in NODE_FIGURES.items()),
    ]
    for seconds, most in ((FINE_SECONDS, FINE_STEPS), (COARSE_SECONDS, COARSE_STEPS)):
        last = int(now // seconds)
        for back in range(0, most, STEPS_AT_ONCE):
            steps = min(STEPS_AT_ONCE, most - back)
            for query in figures:
                yield query, (last - back - steps) * seconds, steps, seconds


def _values(line: _Line, begins: int, steps: int, seconds: int) -> list[float]:
    found = [nan] * steps
    for at, text in line.values:
        place = _place(at, begins, seconds)
        if 0 <= place < steps:
            try:
                found[place] = float(text)
            except ValueError:
                continue
    return found


def _place(at: Any, begins: int, seconds: int) -> int:
    return round((at - begins) / seconds) - 1 if abs(at) < 1e12 else -1
