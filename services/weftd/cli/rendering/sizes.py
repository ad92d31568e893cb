"""The size of a job: now, wanted and allowed, and how it changes."""

from collections.abc import Mapping

from weft.domain.sizes import RoleSize
from weft.domain.spec import ResizeHow
from weft.domain.text import plural
from weftd.cli.formatting import clean

_HOW = {
    ResizeHow.LIVE: "grows and shrinks live",
    ResizeHow.RESTART: "takes another size by a restart",
    ResizeHow.NEVER: "keeps its size while it runs",
}


def is_sized(size: Mapping[str, RoleSize]) -> bool:
    """True if the job may have several sizes."""
    return any(role.least < role.most for role in size.values())


def size_short(size: Mapping[str, RoleSize], *, holding: bool, narrow: bool) -> str:
    """`3/4 (1-8)`: replicas that it has, that it should have, and its range; of several roles each with its name."""
    if not is_sized(size):
        return "-"
    cells: list[str] = []
    for name, role in size.items():
        has = f"{role.granted}/{role.wanted}" if holding else f"{role.wanted}"
        span = "" if narrow else f" ({role.least}-{role.most})"
        cells.append(f"{f'{clean(name)} ' if len(size) > 1 else ''}{has}{span}")
    return " ".join(cells)


def size_sentence(size: Mapping[str, RoleSize], how: ResizeHow | None, *, holding: bool) -> str:
    """`worker 3 of 4 (1 … 8), grows and shrinks live`."""
    parts = [_role_text(name, role, holding=holding) for name, role in size.items()]
    if how is not None:
        parts.append(_HOW[how])
    if any(role.next is not None for role in size.values()):
        parts.append("restarts now with " + " ".join(f"{clean(name)} {role.next}" for name, role in size.items()))
    return ", ".join(parts)


def _role_text(name: str, role: RoleSize, *, holding: bool) -> str:
    has = f"{role.wanted}"
    if holding and role.granted != role.wanted:
        has = f"{role.granted} of {has}" if role.granted < role.wanted else f"{role.granted}, wants {has}"
    span = f" ({role.least} … {role.most})" if role.least < role.most else ""
    leaving = f" while {plural(role.leaving, 'rank')} leave{'s' * (role.leaving == 1)}" if role.leaving else ""
    return f"{clean(name)} {has}{span}{leaving}"
