"""The jobs of a pool that are not final, by id: one mapping, which every part of what a scheduler knows reads."""

from libs.domain.job import Job


class OpenJobs(dict[str, Job]):
    """A class of its own, so that the bytes of a core hold a stand-in for it and no specification (`keeping.py`)."""
