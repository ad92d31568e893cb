"""How much longer a gang takes whose ranks are not all in one node."""

from collections.abc import Mapping

from msgspec import Struct


class Locality(Struct, frozen=True, kw_only=True):
    """Factors on a job's time, 1.0 for none: for spanning nodes (`by_class`, where a class differs), and for spanning
    racks, on top of that. The values are those measured, or 1.7, which the PAL artifact simulates with."""

    across_nodes: float = 1.7
    by_class: Mapping[str, float] = {}
    across_racks: float = 1.0

    def across(self, job_class: str) -> float:
        return self.by_class.get(job_class, self.across_nodes)

    def factor(self, job_class: str, *, nodes: int, racks: int = 1) -> float:
        if nodes <= 1:
            return 1.0
        return self.across(job_class) * (self.across_racks if racks > 1 else 1.0)
