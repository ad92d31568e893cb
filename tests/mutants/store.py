"""Mutants of the SQL functions that guard what is written, whatever a service believes."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        path="libs/weft/store/sql/functions/tuning.sql",
        old="WHERE jobs.pool = of_pool AND jobs.state NOT IN ('succeeded', 'failed', 'cancelled')",
        new="WHERE jobs.pool = of_pool",
        breaks="A size is asked for a job that is over.",
        tests=("tests/conformance/test_store_learnt.py::test_no_size_is_asked_for_a_job_that_is_over[embedded]",),
    ),
    Mutant(
        path="libs/weft/store/sql/functions/leases.sql",
        old="WHERE name = lease_name AND holder = lease_holder AND epoch = lease_epoch FOR SHARE",
        new="WHERE name = lease_name FOR SHARE",
        breaks="A former leader writes after another has taken the lease.",
        tests=("tests/conformance/test_store_leases.py::test_what_a_former_leader_writes_is_refused_whole[embedded]",),
    ),
    Mutant(
        path="libs/weft/store/sql/functions/leases.sql",
        old="WHERE name = lease_name AND loads = of_load)",
        new="WHERE name = lease_name)",
        breaks="A leader admits jobs into a load of the pool that is not its latest.",
        tests=(
            "tests/conformance/test_store_leases.py::test_what_an_earlier_load_of_a_pool_would_admit_is_left_to_the_latest[embedded]",
        ),
    ),
    Mutant(
        path="libs/weft/store/sql/functions/leases.sql",
        old="SET epoch = greatest(epoch, above) + 1, seq = 0",
        new="SET epoch = epoch + 1, seq = 0",
        breaks="After a restored backup the lease has an epoch that another leader had.",
        tests=(
            "tests/conformance/test_store_leases.py::test_a_lease_is_raised_above_what_was_heard_and_marked_until_it_is_settled[embedded]",
        ),
    ),
    Mutant(
        path="libs/weft/store/sql/functions/steps.sql",
        old="WHERE jobs.id = step.id AND jobs.version = step.version",
        new="WHERE jobs.id = step.id",
        breaks="A step of an older version of a job is not left out.",
        tests=(
            "tests/conformance/test_store.py::test_a_job_takes_several_steps_in_one_call_and_stale_ones_are_left_out[embedded]",
        ),
    ),
    Mutant(
        path="libs/weft/store/sql/functions/steps.sql",
        old="AND (now_moved IS NULL OR jobs.id = ANY (now_moved))",
        new="",
        breaks="A step on top of a step that was left out is taken.",
        tests=(
            "tests/conformance/test_store.py::test_a_step_on_top_of_one_that_is_left_out_is_left_out_too[embedded]",
        ),
    ),
    Mutant(
        path="libs/weft/store/sql/functions/law.sql",
        old="WHERE from_state = OLD.state AND event = NEW.last_event AND to_state = NEW.state;",
        new="WHERE event = NEW.last_event AND to_state = NEW.state;",
        breaks="The database takes a step from a state where it is not legal.",
        tests=("tests/conformance/test_store_database.py::test_the_database_itself_refuses_what_is_no_step[embedded]",),
    ),
    Mutant(
        path="libs/weft/store/sql/functions/law.sql",
        old="WHERE from_state = OLD.state AND event = NEW.last_event AND to_state = NEW.state;",
        new="WHERE from_state = OLD.state AND event = NEW.last_event;",
        breaks="The database takes a step to a state to which it does not lead.",
        tests=("tests/conformance/test_store_database.py::test_the_database_itself_refuses_what_is_no_step[embedded]",),
    ),
    Mutant(
        path="libs/weft/store/sql/functions/law.sql",
        old="HAVING sum(part) > 1000",
        new="HAVING sum(part) > 2000",
        breaks="Two jobs hold the same GPU as a whole.",
        tests=(
            "tests/conformance/test_store_shares.py::test_jobs_share_a_gpu_up_to_all_its_time_and_all_its_memory[embedded]",
        ),
    ),
    Mutant(
        path="libs/weft/store/sql/functions/law.sql",
        old="CASE WHEN sum(memory) > 0 THEN sum(memory) > (",
        new="CASE WHEN sum(memory) > 0 THEN sum(memory) > 2 * (",
        breaks="The shares of a GPU hold more memory than it has.",
        tests=(
            "tests/conformance/test_store_shares.py::test_jobs_share_a_gpu_up_to_all_its_time_and_all_its_memory[embedded]",
        ),
    ),
    Mutant(
        path="libs/weft/store/sql/functions/retention.sql",
        old="WHERE a.pool = lease_name AND a.kind <> 'submit' AND a.subject_id = j.id)",
        new="WHERE false)",
        breaks="A job is deleted while an ask for it is open.",
        tests=(
            "tests/conformance/test_store_retention.py::test_a_job_stays_while_something_is_asked_of_it_or_an_event_of_it_is_not_published[embedded]",
        ),
    ),
    Mutant(
        path="libs/weft/store/sql/functions/admission.sql",
        old=" AND earlier.id < asks.id AND earlier.tenant <> asks.tenant)",
        new=" AND earlier.id < asks.id AND false)",
        breaks="What a tenant asked later about a job is done before what another asked earlier.",
        tests=(
            "tests/conformance/test_store.py::test_what_another_tenant_asked_before_about_a_job_comes_first[embedded]",
        ),
    ),
)
