"""How much of everything is run: all of it, or little, to see that it works."""

from msgspec import Struct

from tests.bench.policies.setups import DRAWS, HONEST, SEED_42


class OfPhilly(Struct, frozen=True):
    """The first so many jobs of Philly on so many GPUs. `with_pal`: it places all that run anew at each decision, which
    takes minutes on a large cluster."""

    gpus: int
    jobs: int
    with_pal: bool = True


class Scale(Struct, frozen=True, kw_only=True):
    workloads: tuple[str, ...] = ("1", "2", "3", "4")
    draws: tuple[str, ...] = DRAWS
    honest: tuple[str, ...] = HONEST
    orders: tuple[str, ...] = ("fifo", "las", "srtf")
    costs_s: tuple[float, ...] = (0.0, 30.0, 120.0)
    cadences_s: tuple[float, ...] = (0.0, 360.0)
    drifts_h: tuple[float, ...] = (2.0, 12.0)
    seeds: tuple[int, ...] = (1, 2)
    loads: tuple[float, ...] = (0.6, 0.8, 1.0, 1.2)
    philly: tuple[OfPhilly, ...] = (OfPhilly(256, 2000), OfPhilly(2048, 1500), OfPhilly(2048, 20000, with_pal=False))

    @property
    def clusters(self) -> tuple[str, ...]:
        return (SEED_42, *self.draws, *self.honest)


FULL = Scale()
QUICK = Scale(
    workloads=("1", "4"),
    draws=("draw 7",),
    honest=("longhorn 1",),
    orders=("fifo", "las"),
    costs_s=(30.0,),
    drifts_h=(12.0,),
    seeds=(1,),
    loads=(0.8,),
    philly=(OfPhilly(256, 1000),),
)
