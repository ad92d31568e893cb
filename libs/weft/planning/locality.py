"""The factor on the time of a gang whose ranks are on several nodes."""

from collections.abc import Mapping

from msgspec import Struct


class Locality(Struct, frozen=True, kw_only=True):
    """Factors on a job's time, 1.0 for none: for spanning nodes (`by_workload`, where that is known of its workload),
    and for spanning racks, on top of that. The usual value is that with which the PAL artifact simulates."""

    across_nodes: float = 1.7
    by_workload: Mapping[str, float] = {}
    across_racks: float = 1.0

    def across(self, workload: str) -> float:
        return self.by_workload.get(workload, self.across_nodes)

    def factor(self, workload: str, *, nodes: int, racks: int = 1) -> float:
        if nodes <= 1:
            return 1.0
        return self.across(workload) * (self.across_racks if racks > 1 else 1.0)
