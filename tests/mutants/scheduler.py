"""Mutants of the scheduler: runs, stops, waiting jobs, sizes, loans, shares and moves."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        path="libs/weft/planning/surplus.py",
        old="    starves = has_lasted(lenders.waited_s(job_id), STARVED_SECONDS)\n",
        new="    starves = False\n",
        breaks="An elastic job keeps all that it has beyond its core from an equal job for ever.",
        tests=(
            "tests/unit/test_scheduler_surplus.py::test_a_job_that_starves_gets_what_an_equal_one_has_beyond_its_core",
        ),
    ),
    Mutant(
        path="libs/weft/planning/surplus.py",
        old="if lender in known or its_priority > priority:",
        new="if lender in known:",
        breaks="A job takes ranks from one of higher priority.",
        tests=("tests/unit/test_scheduler_surplus.py::test_a_job_of_lower_priority_gets_nothing",),
    ),
    Mutant(
        path="libs/weft/planning/surplus.py",
        old="if starves or one.idle]",
        new="if starves]",
        breaks="Ranks that a job has only because GPUs were idle do not come back at once.",
        tests=(
            "tests/unit/test_scheduler_surplus.py::test_ranks_beyond_what_the_user_wants_come_back_at_once_and_no_others",
        ),
    ),
    Mutant(
        path="libs/weft/planning/growth.py",
        old="        if offers and not lacking:\n",
        new="        if offers:\n",
        breaks="Idle GPUs go to a job beyond its size while another has fewer ranks than it should.",
        tests=("tests/unit/test_scheduler_surplus.py::test_nothing_is_offered_while_a_running_job_lacks_a_rank",),
    ),
    Mutant(
        path="libs/weft/planning/growth.py",
        old="            elif lacks and not grower.whole:\n",
        new="            elif False:\n",
        breaks="A job below its size waits for ever for ranks that another has only because GPUs idled.",
        tests=(
            "tests/unit/test_scheduler_surplus.py::test_a_job_below_its_size_gets_the_ranks_that_others_have_beyond_what_they_want",
        ),
    ),
    Mutant(
        path="libs/weft/planning/growth.py",
        old="            if one.offered\n",
        new="            if one.idle\n",
        breaks="Two jobs take a rank from each other in turn for ever.",
        tests=(
            "tests/unit/test_scheduler_surplus.py::test_a_job_keeps_the_size_that_was_asked_for_from_one_below_its_size",
        ),
    ),
    Mutant(
        path="libs/weft/planning/growth.py",
        old="    offered = not job.size and not why_never_lends(job)\n",
        new="    offered = not job.size\n",
        breaks="A job gets idle GPUs that it does not give back.",
        tests=("tests/unit/test_scheduler_surplus.py::test_a_job_that_would_not_give_it_back_is_offered_nothing",),
    ),
    Mutant(
        path="libs/weft/planning/growth.py",
        old="seconds=OFFER_COOL_DOWN_SECONDS)",
        new="seconds=0.0)",
        breaks="A job is offered idle GPUs, and loses them, every second.",
        tests=(
            "tests/unit/test_scheduler_surplus.py::test_idle_gpus_are_offered_to_a_live_job_up_to_its_maximum_and_come_back_at_once",
        ),
    ),
    Mutant(
        path="services/weftd/scheduler/thinking/decide/lifecycle.py",
        old=("        if cause.code not in CANCELS or job.stopping_for.code in CANCELS:\n            return []\n"),
        new=("        if cause.code not in CANCELS:\n            return []\n"),
        breaks="A job that is being cancelled gets a second order to stop.",
        tests=("tests/unit/test_scheduler_core.py::test_a_job_that_is_being_cancelled_is_not_cancelled_a_second_time",),
    ),
    Mutant(
        path="services/weftd/scheduler/thinking/decide/lifecycle.py",
        old=(
            "        if node is None or not node.ready or not node.closed_gpus.isdisjoint(each.gpus):\n"
            "            return []\n"
        ),
        new="        del node\n",
        breaks="A job restarts on a node that was lost while it stopped.",
        tests=(
            "tests/unit/test_scheduler_sizes.py::test_a_job_whose_next_node_is_lost_before_it_has_stopped_goes_back_to_the_queue",
        ),
    ),
    Mutant(
        path="services/weftd/scheduler/thinking/decide/lifecycle.py",
        old="if not job.spec.is_service and ranks.all_succeeded(cause.numbers.get(ENDED_AT)):",
        new="if not job.spec.is_service and ranks.exit_code == 0:",
        breaks="An interrupted job that exits with status 0 counts as succeeded.",
        tests=("tests/unit/test_interrupted_jobs.py",),
    ),
    Mutant(
        path="services/weftd/scheduler/thinking/state/runs.py",
        old="if known is None or (report.incarnation, report.seq) > known[1:]:",
        new="if known is None or (report.incarnation, report.seq) >= known[1:]:",
        breaks="A report that comes twice is taken twice.",
        tests=("tests/unit/test_scheduler_core.py::test_a_report_that_comes_a_second_time_is_refused",),
    ),
    Mutant(
        path="services/weftd/scheduler/thinking/state/runs.py",
        old="return report is not None and report[1:] > offered",
        new="return report is not None",
        breaks="A run counts as gone by a report from before it was offered, and runs twice.",
        tests=("tests/unit/test_scheduler_core.py::test_a_job_offered_to_its_node_is_not_gone_until_a_later_report",),
    ),
    Mutant(
        path="services/weftd/scheduler/thinking/state/runs.py",
        old="return key not in self._loaded or node_id in self._sure",
        new="return True",
        breaks="A new leader takes a late report for proof that a run is gone.",
        tests=(
            "tests/unit/test_scheduler_deadlines.py::test_a_report_from_before_a_run_began_takes_it_from_nobody_when_a_new_leader_hears_it_late",
        ),
    ),
    Mutant(
        path="services/weftd/scheduler/thinking/state/orphans.py",
        old="found.update(everything if run.gpus is None else run.gpus)",
        new="found.update(run.gpus or ())",
        breaks="A stray that does not name its GPUs keeps none of them.",
        tests=("tests/unit/test_scheduler_deadlines.py::test_gpus_that_are_not_named_are_all_that_the_node_has",),
    ),
    Mutant(
        path="services/weftd/scheduler/thinking/decide/leader_warmup.py",
        old="if unheard and now < self._heard_until:",
        new="if False:",
        breaks="A new leader places jobs before it has heard of its nodes.",
        tests=(
            "tests/unit/test_scheduler_deadlines.py::test_a_new_leader_gives_nothing_on_a_node_before_it_has_reported",
        ),
    ),
    Mutant(
        path="libs/weft/planning/cycle.py",
        old="if self._unfit.get(resource_request) == (free_capacity.grown, self.reserved):",
        new="if self._unfit.get(resource_request, (-1,))[0] == free_capacity.grown:",
        breaks="A job waits on although the room that was kept for another is no longer kept.",
        tests=(
            "tests/unit/test_scheduler_policy.py::test_a_job_starts_once_no_room_is_kept_any_more_for_the_one_ahead_though_no_job_has_ended",
        ),
    ),
    Mutant(
        path="libs/weft/planning/cycle.py",
        old="closed.enter_context(self._cluster.free_capacity.without(sorted(claimed)))",
        new="pass",
        breaks="A job takes the nodes that are reserved for one that has waited long.",
        tests=(
            "tests/unit/test_scheduler_core.py::test_an_older_job_that_waited_long_is_not_overtaken_for_ever",
            "tests/unit/test_scheduler_policy.py::test_where_nobody_knows_how_long_jobs_take_easy_holds_nobody_back_until_one_waited_long",
        ),
    ),
    Mutant(
        path="libs/weft/planning/cycle.py",
        old="promised = self._keep_promises(job_id)",
        new="promised = set[str]()",
        breaks="Room that is being made for one job is promised to a second one.",
        tests=("tests/unit/test_scheduler_quotas.py::test_two_jobs_of_a_lender_get_their_gpus_back_together",),
    ),
    Mutant(
        path="libs/weft/planning/lending/__init__.py",
        old=("            and (first is None or first <= one.rank[0])\n"),
        new="",
        breaks="A service borrows what a waiting job of higher priority should have.",
        tests=(
            "tests/unit/test_loans.py::test_a_service_borrows_nothing_while_a_job_of_higher_priority_waits_for_room",
        ),
    ),
    Mutant(
        path="services/weftd/scheduler/thinking/decide/sharing.py",
        old=("        if node_id in closed and asked is not None:\n            fits = min(fits, asked.held.request)\n"),
        new="",
        breaks="A share grows on a node that is kept for a waiting job.",
        tests=(
            "tests/unit/test_scheduler_shares.py::test_on_a_node_that_is_kept_for_a_waiting_job_a_share_grows_back_to_what_was_asked_for_and_no_further",
        ),
    ),
    Mutant(
        path="services/weftd/scheduler/thinking/state/cluster.py",
        old="        elif any(allocation.leaving for allocation in held):\n            return None\n",
        new="",
        breaks="Ranks join a job while others still leave it.",
        tests=("tests/unit/test_scheduler_sizes.py::test_no_rank_joins_a_live_job_while_others_still_leave_it",),
    ),
    Mutant(
        path="services/weftd/scheduler/thinking/decide/sizing.py",
        old=(
            "    if any(job.wanted.get(role) != count for role, count in asked.instead_of.items()):\n"
            "        return []\n"
        ),
        new="",
        breaks="A plan undoes the size that a user asked for meanwhile.",
        tests=("tests/unit/test_scheduler_sizes.py::test_a_plan_does_not_undo_what_its_user_asked_for_meanwhile",),
    ),
    Mutant(
        path="services/weftd/scheduler/thinking/state/cluster.py",
        old="gpus_of(jobs[job_id].held).isdisjoint(gpus)",
        new="True",
        breaks="A job that moves gives its place up because another has yet to leave it.",
        tests=(
            "tests/unit/test_scheduler_moves.py::test_a_job_that_moves_onto_the_gpu_of_another_waits_until_that_one_has_left",
        ),
    ),
    Mutant(
        path="libs/weft/planning/moves.py",
        old="not_before=candidate.since + REST * cost_s if candidate.epoch else -inf,",
        new="not_before=-inf,",
        breaks="A job that moved a moment ago moves again.",
        tests=("tests/unit/test_scheduler_moves.py::test_a_job_that_moved_rests_for_ten_times_what_it_cost",),
    ),
)
