"""The networks of a node's containers: each gang has its own, all others share one that isolates its containers."""

import asyncio
import logging

from weft.messages.nodes import StartRun
from weftd.executor.machine.node import NodeFacts, Refusal
from weftd.executor.runs import RunKey, RuntimeUnavailableError
from weftd.executor.runtime.docker.container import HOST_NETWORK, Joined, gang_network
from weftd.executor.runtime.docker.engine import CONFLICT, DockerEngine, EngineRefusedError
from weftd.executor.runtime.docker.settings import TENANT, ContainerSettings

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
LOOKS_MAX = 20  # for the network that rank 0 creates


class Networks:
    def __init__(self, engine: DockerEngine, node: NodeFacts, settings: ContainerSettings) -> None:
        self._engine = engine
        self._node = node
        self._settings = settings
        self._turn = asyncio.Lock()

    async def join(self, order: StartRun, key: RunKey) -> Joined:
        """The network that the run joins, created if necessary. Raises Refusal, RuntimeUnavailableError."""
        chosen = self._settings.job_network
        live = order.members is not None
        if TENANT in chosen and (order.world_size > 1 or live):
            # Overlay networks of tenants are the owner's: only a manager of the swarm could create one for each gang.
            return Joined(network=chosen.replace(TENANT, order.tenant), named=True)
        if chosen and TENANT not in chosen:
            return Joined(network=chosen, named=chosen != HOST_NETWORK)
        if live and order.master_address == self._node.address:  # Ranks may join later: here, and on other hosts.
            return Joined(network=await self._of_gang(order, key), named=True, published=True)
        here = {address for addresses in order.peers.values() for address in addresses} <= {self._node.address}
        if order.world_size > 1 and here and not live:
            return Joined(network=await self._of_gang(order, key), named=True)
        # One network for all runs without peers: they can reach the outside, but not each other.
        alone = f"{self._settings.cluster}-alone"
        made = await self._make(alone, {}, {"com.docker.network.bridge.enable_icc": "false"})
        alone_for_good = order.world_size == 1 and not live
        return Joined(network=made, named=alone_for_good, published=not alone_for_good)

    async def remove(self, key: RunKey) -> None:
        """Remove the gang's network, once no node of this engine has a container of the gang."""
        client = self._engine.client
        name = gang_network(key)
        async with self._turn:
            try:
                found = await self._find(name)
                if found is None:
                    return
                filters = {"label": [f"weft.job={key.job_id}", f"weft.epoch={key.epoch}"]}
                if not await self._engine.call(client.containers, all=True, filters=filters):
                    await self._engine.call(client.remove_network, found)
            except RuntimeUnavailableError as error:  # The run itself is removed already.
                logger.debug("the network of %s stays for now: %s", key, error)

    async def _of_gang(self, order: StartRun, key: RunKey) -> str:
        """The gang's network. Only rank 0 creates it; other ranks wait, or two nodes of one engine would create two."""
        name = gang_network(key)
        if order.rank == 0:
            return await self._make(name, {"weft.job": key.job_id}, {})
        for _ in range(LOOKS_MAX):
            if found := await self._find(name):
                return found
            await asyncio.sleep(LOOK_SECONDS)
        raise RuntimeUnavailableError(f"{key}: rank 0 has not made the network {name} yet")

    async def _find(self, name: str) -> str | None:
        client = self._engine.client
        found = await self._engine.call(lambda: [network["Id"] for network in client.networks(names=[f"^{name}$"])])
        return str(found[0]) if found else None

    async def _make(self, name: str, labels: dict[str, str], options: dict[str, str]) -> str:
        """Create a network, unless it exists; returns its id. Raises Refusal."""
        async with self._turn:
            if found := await self._find(name):
                return found
            try:
                return await self._engine.call(lambda: self._created(name, labels, options))
            except EngineRefusedError as error:
                if error.status == CONFLICT and (found := await self._find(name)):
                    return found
                raise Refusal(f"no network for the job: {error}") from error

    def _created(self, name: str, labels: dict[str, str], options: dict[str, str]) -> str:
        made = self._engine.client.create_network(
            name,
            driver="bridge",
            options=options,
            labels={**labels, "weft.cluster": self._settings.cluster},
            check_duplicate=True,
        )
        return str(made["Id"])
