"""The GPUs of this node: their inventory and their samples.

Real GPUs come from NVIDIA's driver (NVML), emulated ones from the node's settings. Emulated GPUs are not hardware,
are called emulated everywhere, and have no invented values. Only `nvml.py` uses the driver's library; the fake
drivers of tests are in tests/support. Every sample names its provider.
"""

from weft.gpus.inventory import EMULATED_MEMORY, EMULATED_MODEL, inventory, inventory_in_time
from weft.gpus.sample import sample
from weft.gpus.watch import GpuWatch

__all__ = ["EMULATED_MEMORY", "EMULATED_MODEL", "GpuWatch", "inventory", "inventory_in_time", "sample"]
