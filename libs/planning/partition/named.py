"""The partition planners by name."""

from collections.abc import Mapping

from libs.planning.partition import Partitioner
from libs.planning.partition.dorm import dorm
from libs.planning.partition.weft import fast, weft

PARTITIONERS: Mapping[str, Partitioner] = {"dorm": dorm, "weft": weft, "weft-fast": fast}
