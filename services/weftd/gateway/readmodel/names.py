"""Names of jobs in place of their ids in sentences, as far as the reader may see them."""

import re
from collections.abc import Mapping, Sequence

from weft.domain.job import Job
from weft.store.tenants import Access
from weftd.gateway.readmodel.sight import seen_of

_JOB_ID = re.compile(r"(?<![\w(-])j-[a-z0-9]+(?![\w-])")


def names_seen(who: Access, *jobs: Sequence[Job]) -> dict[str, str]:
    """By id, the names of those jobs that the caller may see."""
    return {job.id: job.name for some in jobs for job in seen_of(some, who)}


def with_names(sentence: str, names: Mapping[str, str]) -> str:
    """`waits until train has succeeded` for `waits until j-… has succeeded`. An id in brackets follows its name."""
    return _JOB_ID.sub(lambda found: names.get(found[0], found[0]), sentence)
