"""What one needs to see of a finding: the job's story as the API has it, its traces, the faults around that time."""

from collections.abc import Iterator
from datetime import datetime

from tests.chaos.evidence import Evidence
from tests.chaos.finding import Finding
from weft.messages.http import EventView

AROUND_SECONDS = 20.0
FINDINGS_SHOWN = 12


def told(findings: list[Finding], evidence: Evidence) -> Iterator[str]:
    for finding in findings[:FINDINGS_SHOWN]:
        yield f"\n=== {finding.kind}: {finding.job_id}: {finding.sentence}"
        yield from _of_job(finding.job_id, evidence)
        yield from _faults(finding, evidence)
    if len(findings) > FINDINGS_SHOWN:
        yield f"\nand {len(findings) - FINDINGS_SHOWN} more: " + "; ".join(
            f"{one.kind} {one.job_id}" for one in findings[FINDINGS_SHOWN:]
        )


def _of_job(job_id: str, evidence: Evidence) -> Iterator[str]:
    told = [
        (datetime.fromisoformat(event.time).timestamp() - evidence.boot_to_unix, _sentence(event))
        for event in evidence.stories.get(job_id, ())
    ]
    for run in evidence.runs:
        if run.job_id == job_id:
            told += [(float(line.split()[1]), f"    trace: {line}") for line in run.lines]
            told.append((run.last, f"    trace: last word of epoch {run.epoch} rank {run.rank} on {run.node}"))
    for at, sentence in sorted(told):
        yield f"  {at:10.2f} {sentence}"


def _sentence(event: EventView) -> str:
    data = event.data
    where = (
        [f"{each.rank}@{each.node_id}{list(each.gpus)}" for each in data.placement.allocations]
        if data.placement
        else ""
    )
    why = data.cause.sentence if data.cause else ""
    return f"{event.type} epoch {data.epoch} {why} {where}"


def _faults(finding: Finding, evidence: Evidence) -> Iterator[str]:
    if not finding.at:
        return
    yield "  faults around:"
    for fault in sorted(evidence.faults, key=lambda fault: fault.began):
        if fault.ended > finding.at - AROUND_SECONDS and fault.began < finding.at + AROUND_SECONDS / 4:
            yield f"  {fault.began:10.2f} to {fault.ended:.2f} {fault.what} {fault.target} {fault.failed}"
