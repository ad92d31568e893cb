"""Which network a run's container joins, where the node's owner names networks that reach over hosts."""

from typing import cast

import pytest

from tests.support.runs import order
from weftd.executor.machine.node import NodeFacts
from weftd.executor.runs import RunKey
from weftd.executor.runtime.docker.container import Joined
from weftd.executor.runtime.docker.engine import DockerEngine
from weftd.executor.runtime.docker.networks import Networks
from weftd.executor.runtime.docker.settings import ContainerSettings

NODE = NodeFacts(
    node_id="n-1", address="10.0.0.1", gpus=(), checkpoints="/checkpoints", results="/results", volumes_allowed=()
)


class OneNetwork(Networks):
    """Makes no network: it tells which one would be made."""

    async def _make(self, name: str, labels: dict[str, str], options: dict[str, str]) -> str:
        return f"made {name}"


def networks(job_network: str) -> Networks:
    return OneNetwork(cast(DockerEngine, None), NODE, ContainerSettings(cluster="weft", job_network=job_network))


@pytest.mark.parametrize(("tenant", "expected"), [("red", "weft-jobs-red"), ("blue", "weft-jobs-blue")])
async def test_a_gang_joins_the_network_of_its_tenant_by_name(tenant: str, expected: str) -> None:
    gang = order(image="img", tenant=tenant, world_size=2, master_address="10.0.0.2", master_port=2345)
    assert await networks("weft-jobs-<tenant>").join(gang, RunKey.of(gang)) == Joined(network=expected, named=True)


async def test_a_run_without_peers_joins_no_tenants_network() -> None:
    single = order(image="img", tenant="red", world_size=1)
    joined = await networks("weft-jobs-<tenant>").join(single, RunKey.of(single))
    assert joined == Joined(network="made weft-alone", named=True)


async def test_all_runs_join_a_network_that_names_no_tenant() -> None:
    single = order(image="img", tenant="red", world_size=1)
    assert await networks("overlay").join(single, RunKey.of(single)) == Joined(network="overlay", named=True)
    assert await networks("host").join(single, RunKey.of(single)) == Joined(network="host", named=False)
