"""The jobs of a pool that are not final, by id: one mapping, shared by all parts of the cluster state."""

from weft.domain.job import Job


class OpenJobs(dict[str, Job]):
    """A class of its own, so that the bytes of a core hold a stand-in for it and no specification (`keeping.py`)."""
