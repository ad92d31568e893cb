"""How long after a fault of a server jobs were acknowledged and placed again."""

from collections import defaultdict
from datetime import datetime

from tests.chaos.evidence import Evidence
from tests.chaos.faults import HOSTS

SERVERS = ("nats", "postgres", *HOSTS)


def times(evidence: Evidence) -> dict[str, list[tuple[float, float]]]:
    """By fault, for each time that it was done: seconds until the first acknowledgement, and the first placement, of a
    job that was asked for after the fault began. Where nothing stopped, that is the time until the next job came.
    """
    found = defaultdict(list)
    placed = {
        job_id: [
            datetime.fromisoformat(event.time).timestamp() - evidence.boot_to_unix
            for event in story
            if event.type == "weft.jobs.placed"
        ]
        for job_id, story in evidence.stories.items()
    }
    for fault in evidence.faults:
        if fault.target not in SERVERS or fault.failed:
            continue
        later = [one for one in evidence.submissions if one.asked_at >= fault.began and one.ids]
        acked = [one.acked_at for one in later if one.acked_at]
        began = [at for one in later for at in placed.get(one.id, []) if at >= fault.began]
        if acked and began:
            seconds = (round(min(acked) - fault.began, 1), round(min(began) - fault.began, 1))
            where = "host" if fault.target in HOSTS else fault.target
            found[f"{where}: {fault.what}"].append(seconds)
    return dict(found)
