"""The GPUs of a node that offers emulated ones."""

import logging

from weft.domain.cluster import Gpu

logger = logging.getLogger(__name__)

EMULATED_MODEL = "Emulated GPU"
EMULATED_MEMORY = 16 * 2**30


def emulated_gpus(count: int, *, node_id: str) -> tuple[Gpu, ...]:
    """`count` emulated GPUs. The driver of real ones is not asked."""
    logger.warning("%d emulated GPUs are offered; real GPUs of this machine, if there are any, are not", count)
    return tuple(
        Gpu(
            index=index, uuid=f"EMULATED-{node_id}-{index}", model=EMULATED_MODEL, memory=EMULATED_MEMORY, emulated=True
        )
        for index in range(count)
    )
