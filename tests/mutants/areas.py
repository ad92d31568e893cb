"""All mutants, by the area of the product that they change."""

from tests.mutants import arbiter, domain, planning, scheduler, serving, store, tuning
from tests.mutants.mutant import Mutant

AREAS: dict[str, tuple[Mutant, ...]] = {
    "planning": planning.MUTANTS,
    "domain": domain.MUTANTS,
    "scheduler": scheduler.MUTANTS,
    "tuning": tuning.MUTANTS,
    "serving": serving.MUTANTS,
    "arbiter": arbiter.MUTANTS,
    "store": store.MUTANTS,
}
EVERY: tuple[Mutant, ...] = tuple(mutant for mutants in AREAS.values() for mutant in mutants)


def chosen(words: str) -> tuple[Mutant, ...]:
    """The mutants of which the area, the path or the sentence contains each of the words."""
    wanted = words.lower().split()
    return tuple(
        mutant
        for area, mutants in AREAS.items()
        for mutant in mutants
        if all(word in f"{area} {mutant.path} {mutant.breaks}".lower() for word in wanted)
    )
