"""What the Compose files decide for a node unless its owner says otherwise."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = ("docker-compose.yml", "deploy/compose.node.yml")


def environments(file: str, process: str) -> list[dict[str, Any]]:
    """Of every service in which an executor, or telemetry, runs."""
    services = yaml.safe_load((ROOT / file).read_text())["services"]
    return [one["environment"] for one in services.values() if f"{process}_NODE_ID" in one.get("environment", {})]


@pytest.mark.parametrize("file", FILES)
def test_jobs_have_no_host_network_unless_the_owner_of_the_node_says_so(file: str) -> None:
    networks = [environment["EXECUTOR_JOB_NETWORK"] for environment in environments(file, "EXECUTOR")]
    assert networks
    assert set(networks) == {"${WEFT_JOB_NETWORK:-}"}


@pytest.mark.parametrize("file", FILES)
def test_telemetry_looks_for_the_runs_of_its_executors_cluster(file: str) -> None:
    executors, telemetry = environments(file, "EXECUTOR"), environments(file, "TELEMETRY")
    assert executors
    assert {one["TELEMETRY_CLUSTER"] for one in telemetry} == {one["EXECUTOR_CLUSTER"] for one in executors}
