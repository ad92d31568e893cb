"""Parity: by the artifact's own rules every job ends at the second at which it ends in the artifact."""

import json

from tests.bench.policies.runs import Lab, by_artifact
from tests.bench.policies.scale import Scale
from tests.bench.policies.setups import SEED_42, data, sia
from tests.bench.policies.tables import table

PLACEMENTS = ("pal", "pm-first", "packed-sticky", "packed")


def parity(lab: Lab, scale: Scale) -> str:
    golden = json.loads((data() / "golden/pal-sia-philly.json").read_text())
    runs = {
        (number, placement): by_artifact(placement, cluster=SEED_42, workload=sia(number))
        for number in scale.workloads
        for placement in PLACEMENTS
    }
    results = lab.results(runs.values())

    def differ(number: str, placement: str) -> str:
        ours = results[runs[number, placement]].completed_s
        theirs = {name: job["completed_s"] for name, job in golden[number][placement].items()}
        others = sum(ours.get(name) != at for name, at in theirs.items()) + len(ours.keys() - theirs.keys())
        return f"{others} of {len(theirs)}"

    rows = [[number, *(differ(number, placement) for placement in PLACEMENTS)] for number in scale.workloads]
    return "Jobs that end at another second than in the artifact:\n\n" + table(["workload", *PLACEMENTS], rows)
