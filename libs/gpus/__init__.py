"""The GPUs of this node: which there are, and what they do now.

Real ones through NVIDIA's driver (NVML), or emulated ones where a node asks for those: they are no hardware, are
called so everywhere, and nothing about them is invented. `nvml.py` alone knows the driver's library.
`record.py` keeps a session of real GPUs that `replay.py` gives back; the drivers that tests describe are in
tests/support. Every sample says which of these it comes from.
"""

from libs.gpus.inventory import EMULATED_MEMORY, EMULATED_MODEL, inventory, inventory_in_time
from libs.gpus.sample import sample
from libs.gpus.watch import GpuWatch

__all__ = ["EMULATED_MEMORY", "EMULATED_MODEL", "GpuWatch", "inventory", "inventory_in_time", "sample"]
