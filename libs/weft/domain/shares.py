"""What a rank holds of one GPU: all of it, or a share of its time and of its memory.

Shares are counted in thousandths, so that shares which add up to a GPU do so exactly.
"""

from collections.abc import Sequence

from msgspec import Struct

WHOLE = 1000  # thousandths of a GPU's time
GRAIN = 1e-6  # of a thousandth: the rounding error of a decimal fraction
CONTEXT_BYTES = 512 << 20  # of a GPU's memory: what the driver keeps for each job that is on it


class Share(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of one GPU. `request` and `limit` in thousandths of its time, `memory` in bytes.

    `request` is promised; up to `limit` may be used while others idle; `memory` is a hard bound. `kind`: the kind of
    the job that holds it, by which placement chooses the shares that it is beside; `job_class`: its class when it was
    placed, empty for the most sensitive one.
    """

    request: int
    limit: int = WHOLE
    memory: int
    kind: str = ""
    job_class: str = ""


ALL = Share(request=WHOLE, memory=1 << 62)  # of a GPU, whatever its memory


def is_thousandths(part: float) -> bool:
    """True if it is a whole number of thousandths, at least one."""
    return thousandths(part) >= 1 and abs(part * WHOLE - thousandths(part)) <= GRAIN


def thousandths(part: float) -> int:
    """0.25 → 250."""
    return round(part * WHOLE)


def context_bytes(*, emulated: bool) -> int:
    """GPU memory that the CUDA context of each share takes. The emulated driver takes none."""
    return 0 if emulated else CONTEXT_BYTES


def gpus_held(gpus: Sequence[int], share: Share | None) -> float:
    """The number of GPUs as LAS, DRF and accounts count them: a share of 0.25 is a quarter of a GPU."""
    return len(gpus) if share is None else share.request / WHOLE
