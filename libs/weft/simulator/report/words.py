"""The words by which runs are named, for a reader who does not know them. Pure."""

from collections.abc import Iterable

ORDERS = {
    "fifo": "first come, first served",
    "las": "least attained service: the jobs that have had least GPU time so far come first, and may stop others",
    "srtf": "shortest remaining time first: the jobs that need least time more come first, and may stop others",
    "drf": "dominant resource fairness: the tenant that holds the smallest share comes first",
    "fair": "fair share over time: the tenant or group that used least of late, for its weight, comes first",
    "priority": "the highest priority first, then the oldest",
}
PLACEMENTS = {
    "packed": "on as few nodes as possible; all jobs are placed anew at each decision",
    "packed-sticky": "on as few nodes as possible; a job stays where it is",
    "random": "anywhere",
    "spread": "on the emptiest nodes",
    "pm-first": "on the fastest GPUs; all jobs are placed anew at each decision",
    "pal": "speed of the GPUs against nearness; all jobs are placed anew at each decision",
    "weft-best": "where the job is fastest and others miss it least; a job moves if it gains more than the move costs",
}
BACKFILLS = {
    "none": "no job overtakes one that does not fit",
    "easy": "a job may overtake if it does not delay the first job that does not fit",
    "conservative": "a job may overtake if it delays none of those ahead of it",
}
PARTS = (("order", ORDERS), ("placement", PLACEMENTS), ("backfill", BACKFILLS))


def words_of(policies: Iterable[str]) -> list[tuple[str, str]]:
    """Each word of the policies' names, such as `las+weft-best+easy`, with its meaning; by part, then as they come."""
    found: dict[str, str] = {}
    names = [policy.split("+") for policy in policies]
    for place, (part, meanings) in enumerate(PARTS):
        for name in names:
            if len(name) > place and name[place] in meanings:
                found.setdefault(name[place], f"{part}: {meanings[name[place]]}")
    return list(found.items())
