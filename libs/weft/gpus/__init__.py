"""The GPUs of this node: their inventory and their samples.

They come from NVIDIA's driver (NVML); `weft.emulation` has emulated ones. Only `nvml.py` uses the driver's library;
the fake drivers of tests are in tests/support. Every sample names its provider.
"""

from weft.gpus.inventory import inventory, inventory_in_time, topology_in_time
from weft.gpus.sample import sample
from weft.gpus.watch import GpuWatch

__all__ = ["GpuWatch", "inventory", "inventory_in_time", "sample", "topology_in_time"]
