"""The partition planners by name."""

from collections.abc import Mapping

from weft.planning.partition import Partitioner
from weft.planning.partition.weft import fast, weft

PARTITIONERS: Mapping[str, Partitioner] = {"weft": weft, "weft-fast": fast}
