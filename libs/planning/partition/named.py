"""The partition planners by name."""

from collections.abc import Mapping

from libs.planning.partition import Partitioner
from libs.planning.partition.weft import fast, weft

PARTITIONERS: Mapping[str, Partitioner] = {"weft": weft, "weft-fast": fast}
