"""Mutants of the tuner and of the reallocator: trials, limits, and sizes of elastic jobs."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        path="libs/weft/tuning/limits.py",
        old="    if case.job.spec.tuning.memory_min is None:\n        return None\n",
        new="",
        breaks="Memory that was added is taken back from a job that did not allow it.",
        tests=(
            "tests/unit/test_tuned_memory.py::test_memory_that_was_added_is_taken_back_only_from_a_job_that_names_a_floor",
        ),
    ),
    Mutant(
        path="libs/weft/tuning/state.py",
        old="return gain >= GAIN_KEPT and (proposal.cost <= ALIKE or gain / proposal.cost >= WORTH_KEPT)",
        new="return gain >= GAIN_KEPT",
        breaks="A change is kept that costs far more than it gains.",
        tests=("tests/unit/test_tuning_rules.py",),
    ),
    Mutant(
        path="libs/weft/tuning/state.py",
        old="return gain >= -LOSS_KEPT",
        new="return True",
        breaks="A reclaim that slows its job down is kept.",
        tests=("tests/unit/test_tuned_rollbacks.py::test_a_reclaim_that_costs_speed_is_undone_once",),
    ),
    Mutant(
        path="libs/weft/tuning/state.py",
        old="if len(latest) < STABLE_WINDOWS or len({measure.told for measure in latest}) > 1:",
        new="if len(latest) < STABLE_WINDOWS:",
        breaks="Windows in which different ranks reported are compared.",
        tests=("tests/unit/test_tuning_rules.py",),
    ),
    Mutant(
        path="libs/weft/tuning/tuner.py",
        old=(
            "    if window is not None and not _in_force(window, trial.proposal.after):\n"
            "        window = None  # granted, but not yet applied by the node\n"
        ),
        new="",
        breaks="A trial is judged by a window from before its limits were applied.",
        tests=("tests/unit/test_tuning_rules.py",),
    ),
    Mutant(
        path="libs/weft/tuning/tuner.py",
        old="if not _may_shrink(trial.proposal, window):",
        new="if False:",
        breaks="A rollback takes memory that a rank uses, and the rank is killed.",
        tests=("tests/unit/test_tuning_rules.py::test_a_trial_is_not_undone_where_a_rank_would_be_killed",),
    ),
    Mutant(
        path="libs/weft/tuning/limits.py",
        old="return window is None or window.memory_used is None or window.memory_used <= MEMORY_FULL * memory",
        new="return True",
        breaks="A rank is given less memory than it uses, and is killed.",
        tests=("tests/unit/test_tuning_rules.py",),
    ),
    Mutant(
        path="libs/weft/tuning/limits.py",
        old="more = min(wanted - allocation.memory, free.get(allocation.node_id, 0)) // MEMORY_GRAIN * MEMORY_GRAIN",
        new="more = (wanted - allocation.memory) // MEMORY_GRAIN * MEMORY_GRAIN",
        breaks="A rank is proposed more memory than its node has.",
        tests=("tests/unit/test_tuning_rules.py",),
    ),
    Mutant(
        path="libs/weft/tuning/limits.py",
        old="if case.job.attempts or started is None or case.recent[-1].since > started + MEMORY_FOLLOWED:",
        new="if started is None or case.recent[-1].since > started + MEMORY_FOLLOWED:",
        breaks="Memory is taken from a job that may have failed for lack of it.",
        tests=("tests/unit/test_tuned_memory.py::test_a_job_that_failed_before_keeps_what_it_has",),
    ),
    Mutant(
        path="libs/weft/tuning/cpus.py",
        old=(
            "    if total > max(before, case.bounds.cpus if code is CauseCode.UPSCALED else before) + 1e-9:\n"
            "        return None\n"
        ),
        new="",
        breaks="A split gives a job more cores than it has in all.",
        tests=("tests/unit/test_tuning_rules.py",),
    ),
    Mutant(
        path="libs/weft/tuning/cpus.py",
        old="scale = min(1.0, (free + gives) / grows) if grows > 0 else 1.0",
        new="scale = 1.0",
        breaks="A rank is proposed more cores than its node has.",
        tests=("tests/unit/test_tuning_rules.py",),
    ),
    Mutant(
        path="libs/weft/tuning/envelope.py",
        old=("    if pool is TuningMode.OFF:\n        return TuningMode.OFF\n"),
        new="",
        breaks="A job is tuned in a pool where tuning is off.",
        tests=("tests/unit/test_tuned_jobs.py::test_off_for_the_pool_is_final",),
    ),
    Mutant(
        path="libs/weft/planning/resizing.py",
        old="return has_lasted(now - changed_at, max(seconds, restarts * restart_s))",
        new="return now - changed_at >= seconds",
        breaks="A job restarts for another size soon after its last restart.",
        tests=(
            "tests/unit/test_reallocator_partition.py::test_a_job_that_restarts_does_so_again_soon_only_for_a_gain_that_is_large_beside_the_restart",
        ),
    ),
)
