"""A check of a node or a cluster, as `weft doctor` shows it."""

from enum import StrEnum

from msgspec import Struct


class Health(StrEnum):
    """`problem`: something does not work. `warning`: it works with a limitation, or will not for ever."""

    FINE = "fine"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(Struct, frozen=True, kw_only=True):
    """`about`: the thing that was checked; `act`: the remedy, empty if all is fine."""

    about: str
    health: Health
    sentence: str
    act: str = ""


def fine(about: str, sentence: str) -> Check:
    return Check(about=about, health=Health.FINE, sentence=sentence)


def warning(about: str, sentence: str, act: str) -> Check:
    return Check(about=about, health=Health.WARNING, sentence=sentence, act=act)


def problem(about: str, sentence: str, act: str) -> Check:
    return Check(about=about, health=Health.PROBLEM, sentence=sentence, act=act)
