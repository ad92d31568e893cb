"""The NUMA nodes of this machine, and which runs are pinned to them, kept in a file for the next executor."""

import logging
import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from weft.domain.topology import UNKNOWN_NUMA
from weft.messages.nodes import StartRun
from weftd.executor.files.home import Home
from weftd.executor.machine.node import NodeFacts, gpus_of
from weftd.executor.runs import RunKey
from weftd.executor.thinking.pinning import UNPINNED, NumaNode, Pin, Pinned, numa_for

logger = logging.getLogger(__name__)

KIB = 1024


def numa_nodes(root: Path = Path("/sys/devices/system/node")) -> tuple[NumaNode, ...]:
    """The NUMA nodes with CPUs and memory, by number; () if the kernel has no files of them."""
    found = []
    for folder in root.glob("node[0-9]*"):
        try:
            cpus = (folder / "cpulist").read_text().strip()
            memory = _memory(folder)
            if cpus and memory:
                number = int(folder.name[4:])
                found.append(NumaNode(number=number, cpus=cpus, cpu_count=_count(cpus), memory=memory))
        except (OSError, ValueError) as error:
            logger.warning("the NUMA nodes cannot be read, so no run is pinned: %s: %s", folder, error)
            return ()
    return tuple(sorted(found, key=lambda node: node.number))


class Pins:
    """The runs of this node by NUMA node. `home`: where they are kept."""

    def __init__(self, home: Home, node: NodeFacts) -> None:
        self._node = node
        self._path = home.root / "pins"
        self._held: dict[str, Pinned] = {}
        if self._is_on:
            try:
                self._held = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Pinned])
            except FileNotFoundError:
                pass
            except (OSError, msgspec.MsgspecError) as error:
                logger.warning("which runs are pinned is not known: %s", error)

    @property
    def _is_on(self) -> bool:
        return len(self._node.numa) > 1

    def begin(self, order: StartRun) -> Pin | None:
        """The pin of a run that is to start; None: it is not pinned. Raises Refusal, RuntimeUnavailableError."""
        if not self._is_on:
            return None
        topology = self._node.topology
        gpus = [UNKNOWN_NUMA if topology is None else topology.numa_of(gpu.index) for gpu in gpus_of(order, self._node)]
        key = str(RunKey.of(order))
        held = [run for name, run in self._held.items() if name != key]
        numa = numa_for(gpus, cpus=order.cpus, memory=order.memory, nodes=self._node.numa, held=held)
        number = UNPINNED if numa is None else numa.number
        self._held[key] = Pinned(numa=number, cpus=order.cpus, memory=order.memory)
        self._write()
        if numa is None:
            return None
        return Pin(cpus=numa.cpus, memory=str(numa.number) if self._node.binds_memory else "")

    def keep(self, keys: Collection[RunKey]) -> None:
        """After a restart: these runs are there, all others have ended."""
        names = {str(key) for key in keys}
        gone = self._held.keys() - names
        if gone:
            self._held = {name: run for name, run in self._held.items() if name in names}
            self._write()

    def forget(self, key: RunKey) -> None:
        if self._held.pop(str(key), None) is not None:
            self._write()

    def _write(self) -> None:
        unfinished = self._path.with_name(".pins.unfinished")
        try:
            unfinished.write_bytes(msgspec.json.encode(self._held))
            os.replace(unfinished, self._path)
        except OSError as error:
            logger.warning("which runs are pinned cannot be kept for the next executor: %s", error)


def _memory(folder: Path) -> int:
    """The bytes of `MemTotal` in `meminfo`, where each line begins with `Node 0`."""
    for line in (folder / "meminfo").read_text().splitlines():
        words = line.split()
        if len(words) > 3 and words[2] == "MemTotal:":
            return int(words[3]) * KIB
    return 0


def _count(cpus: str) -> int:
    """How many CPUs a list has: 20 for `0-15,32-35`."""
    count = 0
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count
