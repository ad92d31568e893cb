"""An executor's memory without files, for tests and simulations."""

from weftd.executor.runs import RunKey
from weftd.executor.thinking.core import Memory


class MemoryKeeper:
    """Keeps memory in the process. A second executor may be given it, after `restarted`."""

    def __init__(self, boot_id: str = "boot-1") -> None:
        self.boot_id = boot_id
        self.incarnation = 1
        self.memory = Memory()

    def save(self, memory: Memory) -> None:
        self.memory = memory

    def fenced(self) -> frozenset[RunKey]:
        return frozenset()

    def restarted(self) -> "MemoryKeeper":
        self.incarnation += 1
        return self
