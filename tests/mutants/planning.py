"""Mutants of the planning: order, backfill, quotas, placement, preemption, moves and sizes."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        path="libs/weft/simulator/lives.py",
        old="        self.quotas.let_go(job.trace.id)\n",
        new="",
        breaks="A simulated job that has ended counts against the quota of its tenant for ever.",
        tests=("tests/unit/test_one_engine.py",),
    ),
    Mutant(
        path="libs/weft/simulator/deciding.py",
        old="                self.lives.keep(target.job_id, target.place)\n",
        new="                self.lives.keep(target.job_id, ())\n",
        breaks="The simulator gives the new place of a job that moves to another, as the scheduler does not.",
        tests=("tests/unit/test_one_engine.py",),
    ),
    Mutant(
        path="libs/weft/simulator/job.py",
        old="cost_s=self.stop_s(world) - world.move_s + world.grace_s + every / 2,",
        new="cost_s=self.stop_s(world) - world.move_s + world.grace_s,",
        breaks="In the simulator a move does not cost the work that it loses, as it does live.",
        tests=("tests/unit/test_one_engine.py",),
    ),
    Mutant(
        path="libs/weft/simulator/lives.py",
        old="job.leaves = True",
        new="job.leaves = False",
        breaks="The simulator makes room twice for one job while its victims stop, as the scheduler does not.",
        tests=("tests/unit/test_one_engine.py",),
    ),
    Mutant(
        path="libs/weft/simulator/job.py",
        old="worth=(*tier, *self.loss(now))",
        new="worth=(*tier, -float(self.number))",
        breaks="The simulator evicts the newest of equal jobs, where the scheduler stops the one that loses least.",
        tests=("tests/unit/test_one_engine.py",),
    ),
    Mutant(
        path="libs/weft/simulator/pool.py",
        old="each = structs.replace(each, models=models, excluded=excluded)",
        new="each = structs.replace(each, models=models)",
        breaks="The simulator gives a job GPUs of a model that it excludes, as the scheduler does not.",
        tests=("tests/unit/test_one_engine.py",),
    ),
    Mutant(
        path="libs/weft/planning/moves.py",
        old="return only_on(as_placed, candidate.model) if candidate.model else as_placed",
        new="return as_placed",
        breaks="A move takes a job from the model that the partition planner chose, which takes it back.",
        tests=("tests/unit/test_model_owner.py",),
    ),
    Mutant(
        path="libs/weft/planning/awaiting/__init__.py",
        old="if waited_s + at - self._now <= saves_s / MARGIN and (",
        new="if (",
        breaks="A job waits for a faster model longer than that saves.",
        tests=("tests/unit/test_model_choice.py",),
    ),
    Mutant(
        path="libs/weft/planning/awaiting/__init__.py",
        old="free_capacity.take_all(place if fits_there(free_capacity, place) else ())",
        new="pass",
        breaks="Two jobs wait for the same GPUs of a faster model.",
        tests=("tests/unit/test_model_choice.py",),
    ),
    Mutant(
        path="libs/weft/planning/scheduling_pass.py",
        old=('        if demand.pinned and self._rule != "none":\n            return\n'),
        new="",
        breaks="A pinned job that waits holds back the jobs behind it.",
        tests=("tests/unit/test_scheduling_pass.py",),
    ),
    Mutant(
        path="libs/weft/planning/scheduling_pass.py",
        old=(
            "            if demand.held:\n                yield Held(job_id)\n                self._served.blocked()\n"
        ),
        new=(
            "            if demand.held:\n                yield Held(job_id)\n                self._served.passed()\n"
        ),
        breaks="A job that quotas hold back leaves the rest of its group free to start.",
        tests=("tests/unit/test_scheduling_pass.py",),
    ),
    Mutant(
        path="libs/weft/planning/scheduling_pass.py",
        old="backfill.started(gpus_in(place), demand.lasts_s)",
        new="pass",
        breaks="Several jobs overtake on the same spare GPUs and delay the job ahead of them.",
        tests=("tests/unit/test_scheduling_pass.py",),
    ),
    Mutant(
        path="libs/weft/planning/scheduling_pass.py",
        old="limits = backfill if self.ahead and demand.gpus and demand.may_fit else None",
        new="limits = None",
        breaks="Jobs overtake although they delay the job ahead of them.",
        tests=("tests/unit/test_scheduling_pass.py",),
    ),
    Mutant(
        path="libs/weft/planning/backfill.py",
        old="self._spare = max(0, free - gpus)",
        new="self._spare = free",
        breaks="EASY counts the GPUs of its reservation as spare.",
        tests=("tests/unit/test_backfill.py",),
    ),
    Mutant(
        path="libs/weft/planning/backfill.py",
        old="return ends <= self._reserved_at or gpus <= self._spare + GPU_GRAIN",
        new="return ends <= self._reserved_at",
        breaks="EASY lets no long job use GPUs that the reservation leaves free.",
        tests=("tests/unit/test_backfill.py",),
    ),
    Mutant(
        path="libs/weft/planning/backfill.py",
        old="self._take(max(start, self._times[0]), gpus, lasts)",
        new="pass",
        breaks="Conservative backfill reserves nothing: later jobs delay those that wait.",
        tests=("tests/unit/test_backfill.py",),
    ),
    Mutant(
        path="libs/weft/planning/capacity/gpus_left.py",
        old="if left.time >= WHOLE and index not in self.withheld:",
        new="if left.time >= WHOLE:",
        breaks="A withheld GPU is given to a job once its last share comes back.",
        tests=(
            "tests/unit/test_shared_gpus.py::test_a_gpu_that_is_withheld_is_not_given_when_its_last_share_comes_back",
        ),
    ),
    Mutant(
        path="libs/weft/planning/capacity/gpus_left.py",
        old="left = Left(0, 0) if is_held else Left(WHOLE, make.memory)",
        new="left = Left(WHOLE, make.memory)",
        breaks="A GPU that one job holds as a whole has room for shares of others.",
        tests=("tests/unit/test_shared_gpus.py",),
    ),
    Mutant(
        path="libs/weft/planning/quota/ranks.py",
        old="return fit.over is None and (preemptible or fit.level == 0)",
        new="return fit.over is None and (preemptible or fit.level is not None)",
        breaks="A job that cannot be preempted starts on what its group lends it, and never gives it back.",
        tests=("tests/unit/test_quotas.py",),
    ),
    Mutant(
        path="libs/weft/planning/quota/tree.py",
        old="rest = max(0.0, millis - sum(path[0].guarantee(ALL) for path in paths.values()))",
        new="rest = millis",
        breaks="A tenant is due its guarantee a second time, as a part of the rest.",
        tests=("tests/unit/test_quotas.py",),
    ),
    Mutant(
        path="libs/weft/planning/quota/reclaim.py",
        old=("    if any(branch.key == own for branch in ledger.tree.path(held.tenant)):\n        return False\n"),
        new="",
        breaks="A group takes back from its own members what they are guaranteed together.",
        tests=("tests/unit/test_quotas.py",),
    ),
    Mutant(
        path="libs/weft/planning/quota/reclaim.py",
        old="if level is None or held is None or not held.preemptible or now - held.since < runtime_s:",
        new="if level is None or held is None or not held.preemptible:",
        breaks="A borrower loses its GPUs before the guaranteed time is over.",
        tests=("tests/unit/test_quotas.py",),
    ),
    Mutant(
        path="libs/weft/planning/placement/apart.py",
        old=("            if not on[node.node.id]:\n                fewest = (0, node)\n                break\n"),
        new=("            fewest = (0, node)\n            break\n"),
        breaks="All replicas of a service are put on one node, and end with it.",
        tests=("tests/unit/test_service_places.py",),
    ),
    Mutant(
        path="libs/weft/planning/partition/packing.py",
        old="j = max(here, key=lambda j: (self._wasted(job, j), self._part_free(j), -here[j], -j))",
        new="j = min(here, key=lambda j: (self._wasted(job, j), self._part_free(j), -here[j], -j))",
        breaks="A job that shrinks leaves the fullest server, and free GPUs lie scattered.",
        tests=(
            "tests/unit/test_partition_weft.py::test_replicas_leave_the_server_where_most_is_free_so_that_free_gpus_lie_together",
        ),
    ),
    Mutant(
        path="libs/weft/planning/preemption/__init__.py",
        old=(
            "            if find(free_capacity, resource_request, asked) is None:\n"
            "                free_capacity.give_back_all(holder.allocations)\n"
            "                victims.append(holder)\n"
        ),
        new=("            free_capacity.give_back_all(holder.allocations)\n            victims.append(holder)\n"),
        breaks="More jobs are preempted than have to go.",
        tests=(
            "tests/unit/test_making_room.py",
            "tests/unit/test_giving_way.py",
            "tests/unit/test_scheduler_policy.py",
        ),
    ),
    Mutant(
        path="libs/weft/planning/preemption/minimum_run.py",
        old="self.seconds * 2.0 ** min(tries, 16)",
        new="self.seconds",
        breaks="A job without checkpoints is preempted again and again before it gets on.",
        tests=("tests/unit/test_minimum_run.py",),
    ),
    Mutant(
        path="libs/weft/planning/preemption/loss.py",
        old="return (float(gave_way), float(not extra), gpu_seconds, -held_since, -float(seq))",
        new="return (0.0, float(not extra), gpu_seconds, -held_since, -float(seq))",
        breaks="A job that gave way a moment ago is the next victim again.",
        tests=("tests/unit/test_giving_way.py",),
    ),
    Mutant(
        path="libs/weft/planning/preemption/loss.py",
        old="return held if mean is None else min(held, mean)",
        new="return 0.0 if mean is None else min(held, mean)",
        breaks="A job without checkpoints counts as one that loses nothing, and is preempted first.",
        tests=("tests/unit/test_giving_way.py",),
    ),
    Mutant(
        path="libs/weft/planning/moves.py",
        old="return job.gpus * (faster * min(HORIZON_S, job.left_s * slowdown) - margin * job.cost_s)",
        new="return job.gpus * (faster * min(HORIZON_S, job.left_s * slowdown))",
        breaks="A job moves although the move costs more than it gains.",
        tests=("tests/unit/test_moves.py",),
    ),
    Mutant(
        path="libs/weft/planning/borrowing.py",
        old=('    if job.priority > service.priority:\n        return "of higher priority"\n'),
        new="",
        breaks="A service takes ranks from a job of higher priority.",
        tests=("tests/unit/test_loans.py",),
    ),
    Mutant(
        path="libs/weft/planning/resizing.py",
        old="extras = of_role[least:]",
        new="extras = of_role",
        breaks="Ranks of the core leave a job that shrinks.",
        tests=("tests/unit/test_resizing.py",),
    ),
    Mutant(
        path="libs/weft/planning/order.py",
        old="    return max(LAS_PATIENCE_SECONDS, LAS_PATIENCE * job.attained_s) - job.waited_s",
        new="    return None",
        breaks="A job that has had much never returns to the first level, and starves.",
        tests=(
            "tests/unit/test_orders.py",
            "tests/unit/test_scheduler_policy.py::test_las_forgets_what_one_had_who_went_without_for_long_also_under_another_leader",
        ),
    ),
    Mutant(
        path="libs/weft/planning/order.py",
        old="return 0 if job.promoted else int(job.gpus).bit_length()",
        new="return int(job.gpus).bit_length()",
        breaks="A large job starves behind small ones that keep coming.",
        tests=("tests/unit/test_orders.py", "tests/unit/test_scheduler_core.py"),
    ),
    Mutant(
        path="libs/weft/planning/resource_request.py",
        old="        for model in preferred | named:\n",
        new="        for model in named:\n",
        breaks="A waiting job does not start on the model that the partition planner chose for it.",
        tests=(
            "tests/unit/test_gpu_models.py::test_a_job_starts_on_the_model_that_the_planner_chose_and_anywhere_else_if_that_is_full",
        ),
    ),
    Mutant(
        path="libs/weft/domain/cluster.py",
        old="return self.may_have(model) and memory >= self.gpu_memory",
        new="return self.may_have(model)",
        breaks="A job gets GPUs with less memory than it needs.",
        tests=("tests/unit/test_gpu_models.py::test_a_job_gets_no_gpu_with_less_memory_than_it_needs",),
    ),
    Mutant(
        path="libs/weft/domain/cluster.py",
        old="return named and model not in self.excluded",
        new="return named",
        breaks="A job gets GPUs of a model that it excludes.",
        tests=("tests/unit/test_gpu_models.py::test_a_job_gets_no_gpu_of_a_model_that_it_excludes",),
    ),
    Mutant(
        path="services/weftd/scheduler/thinking/decide/sizing.py",
        old="shape = tuple(structs.replace(want, least=want.count) for want in shape)",
        new="shape = tuple(structs.replace(want, least=1) for want in shape)",
        breaks="A job stops for another model where only a part of it fits.",
        tests=("tests/unit/test_gpu_models.py::test_a_job_stays_where_it_is_until_all_of_it_fits_on_the_other_model",),
    ),
    Mutant(
        path="libs/weft/planning/partition/__init__.py",
        old="return self.fixed or (self.cools and not self.restart_s)",
        new="return self.fixed or self.cools",
        breaks="A job that restarts stays small beside idle GPUs until its cool-down is over.",
        tests=(
            "tests/unit/test_reallocator_partition.py::test_a_job_that_restarts_does_so_again_soon_only_for_a_gain_that_is_large_beside_the_restart",
        ),
    ),
    Mutant(
        path="libs/weft/planning/partition/configurations.py",
        old="job.restart_s * (COOLING_RESTARTS if job.cools else 1.0)",
        new="job.restart_s",
        breaks="A job restarts again and again for small gains.",
        tests=(
            "tests/unit/test_reallocator_partition.py::test_a_job_that_restarts_does_so_again_soon_only_for_a_gain_that_is_large_beside_the_restart",
        ),
    ),
    Mutant(
        path="services/weftd/reallocator/thinking/kinds.py",
        old="jobs[each.job_id].gpu_model or each.model",
        new="each.model",
        breaks="The planner asks again and again for a model for which a job waits already.",
        tests=(
            "tests/unit/test_gpu_models.py::test_the_planner_moves_a_job_to_the_model_on_which_it_is_faster_by_more_than_its_restart_costs",
        ),
    ),
)
