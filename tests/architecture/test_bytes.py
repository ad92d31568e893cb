"""Large rows are read in parts that are bounded in bytes: a bound in number alone is no bound of memory."""

import re

from weft.store.sql import QUERIES

SAYS_LARGE = re.compile(r"\bspec\b|\brevisions\b")  # a specification may be a megabyte, the revisions of a service four
BOUNDED = re.compile(r"\b(before|bytes_before) < ")

WHY_NOT = {
    "add_schedule": "writes",
    "admit": "asks_to_admit bounds them",
    "array_jobs": "no array has more than 32 MiB of specifications",
    "arrays_newest": "reads ids",
    "ask_elements": "reads a count",
    "ask_selected": "reads a count",
    "ended_jobs": "benchmarks, which administrators alone submit",
    "forget_contexts": "reads nothing",
    "job": "one job",
    "job_facts": "labels and checkpoints, which are small parts",
    "schedules": "a specification that recurs has at most 64 KiB",
    "schedules_to_try": "likewise",
    "service_versions": "reads ids and versions",
    "submit": "writes",
    "submit_array": "writes",
}


def test_every_list_with_specifications_is_bounded_in_bytes() -> None:
    large = {name for name, text in QUERIES.items() if SAYS_LARGE.search(text)}
    unbounded = {name for name in large if not BOUNDED.search(QUERIES[name])}
    assert unbounded == WHY_NOT.keys(), f"{unbounded ^ WHY_NOT.keys()}: bounded in number alone, or bounded by now"
