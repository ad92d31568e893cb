"""The check of GPUs before a gang, on a live cluster with emulated GPUs: the real program measures each of them."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.builders import spec
from tests.support.cluster import LOOK_SECONDS, embedded_cluster
from weft.domain.health import HealthState
from weft.domain.job import JobState
from weft.emulation.slowdowns import slow_down

SECONDS_MAX = 120.0


@pytest.mark.timeout(240)
async def test_a_gang_starts_without_the_node_whose_gpu_fails_its_check(tmp_path: Path) -> None:
    role = {"cpus": 0.1, "memory": "16MiB"}
    async with embedded_cluster(tmp_path, nodes=3, gpus=4, settings={"SCORER_BENCHMARKS": "off"}) as cluster:
        async with asyncio.timeout(SECONDS_MAX):  # a node without telemetry checks no GPU
            while not all(node.sampled_at for node in (await cluster.client.nodes()).nodes):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
        wanted = spec("first", gpus=4, replicas=2, command=["sleep", "600"], role=role)
        first = await cluster.state((await cluster.client.submit(wanted)).id, JobState.RUNNING)
        assert first.placement is not None
        nodes = {each.node_id for each in first.placement.allocations}
        sick = min(nodes)
        await cluster.client.cancel(first.id)
        await cluster.ended(first.id)
        slow_down(cluster.local.home.node(sick) / "emulated", 2, 3.0)

        wanted = spec("gang", gpus=4, replicas=2, command=["sleep", "600"], preflight=True, role=role)
        job = (await cluster.client.submit(wanted)).id
        view = await cluster.until(job, lambda now: now.state is JobState.RUNNING, seconds_max=SECONDS_MAX)
        assert view.placement is not None
        assert sick not in {each.node_id for each in view.placement.allocations}
        assert view.attempts == 0
        for each in view.placement.allocations:  # their copies and an all-reduce were measured, too
            kept = json.loads((cluster.local.home.node(each.node_id) / "preflight.json").read_bytes())
            (model,) = kept["speeds"]
            assert all(None not in speed for speed in kept["speeds"][model])
            assert list(kept["all_reduces"]) == [f"4 {model}"]
        gpus = {gpu.index: gpu.health for gpu in (await cluster.client.gpus(node=sick)).gpus}
        health = gpus[2]
        assert health is not None
        assert (health.state, health.code) == (HealthState.QUARANTINED, "preflight")
        assert "times as long as those of its model" in health.sentence
