"""Mutants of the domain: the law of steps, sizes, dependencies, and what a specification may set."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        path="libs/weft/domain/job.py",
        old="return job.loans if step.to.holding and step.event not in NEW_EPOCH else ()",
        new="return job.loans if step.to.holding else ()",
        breaks="A service that restarts still owes what an earlier epoch borrowed.",
        tests=("tests/unit/test_job_steps.py",),
    ),
    Mutant(
        path="libs/weft/domain/job.py",
        old="spare[allocation.node_id, allocation.role] -= 1",
        new="pass",
        breaks="One rank without GPUs counts as the place of every rank of the next epoch.",
        tests=("tests/unit/test_job_steps.py",),
    ),
    Mutant(
        path="libs/weft/domain/job.py",
        old="over = job.state.holding and (anew or not step.to.holding)",
        new="over = job.state.holding and not step.to.holding",
        breaks="The time of an epoch that ends with a restart is not counted as used.",
        tests=("tests/unit/test_job_steps.py",),
    ),
    Mutant(
        path="libs/weft/domain/job.py",
        old="return max(self.ranks_used, max((allocation.rank for allocation in self.allocations), default=-1) + 1)",
        new="return max((allocation.rank for allocation in self.allocations), default=-1) + 1",
        breaks="A rank number is given twice in one epoch.",
        tests=("tests/unit/test_job_steps.py",),
    ),
    Mutant(
        path="libs/weft/domain/job.py",
        old="return node_id in self.nodes",
        new="return True",
        breaks="A node that never had a job keeps it waiting by a claim to run it.",
        tests=("tests/unit/test_scheduler_nodes.py",),
    ),
    Mutant(
        path="libs/weft/domain/dependencies.py",
        old="When.NOT_OK: (ends.settled and ends.bad > 0, ends.settled),",
        new="When.NOT_OK: (ends.bad > 0, ends.settled),",
        breaks="A dependent of an array starts before the array is over.",
        tests=("tests/unit/test_scheduler_holds.py",),
    ),
    Mutant(
        path="libs/weft/domain/dependencies.py",
        old="ends.ended > ends.ok or not ends.total",
        new="not ends.total",
        breaks="A job waits for ever for the success of a job that failed.",
        tests=("tests/unit/test_scheduler_holds.py",),
    ),
    Mutant(
        path="libs/weft/domain/sizes.py",
        old="if not least <= count <= most:",
        new="if count > most:",
        breaks="A job is given fewer replicas than the least that its user allows.",
        tests=("tests/unit/test_scheduler_sizes.py",),
    ),
    Mutant(
        path="libs/weft/domain/sizes.py",
        old="return ResizeHow.NEVER if lost_seconds(spec) is None else ResizeHow.RESTART",
        new="return ResizeHow.RESTART",
        breaks="A job without checkpoints is stopped to take another size, and loses its work.",
        tests=("tests/unit/test_scheduler_sizes.py",),
    ),
    Mutant(
        path="libs/weft/domain/contract.py",
        old="return name.startswith(WEFT_PREFIX) or name in ISOLATING",
        new="return name.startswith(WEFT_PREFIX)",
        breaks="A job reaches the GPUs of others by a variable of its own.",
        tests=("tests/unit/test_environment.py",),
    ),
    Mutant(
        path="libs/weft/domain/selection.py",
        old=("            and (self.since is None or job.submitted_at >= self.since)\n"),
        new="",
        breaks="A selection by time holds every job, whenever it was submitted.",
        tests=("tests/unit/test_selection.py",),
    ),
)
