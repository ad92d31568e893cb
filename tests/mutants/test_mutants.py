"""Every mutant can be applied to the sources as they are, and the tool tells a killed mutant from one that survives."""

from msgspec import structs

from tests.mutants.areas import EVERY, chosen
from tests.mutants.mutant import Mutant
from tests.mutants.trial import ROOT, Outcome, occurrences, try_mutants


def test_the_old_text_of_each_mutant_occurs_once() -> None:
    assert [(mutant.path, mutant.old) for mutant in EVERY if occurrences(mutant) != 1] == []


def test_the_tests_of_each_mutant_exist() -> None:
    for mutant in EVERY:
        for test in mutant.tests:
            path, _, name = test.partition("::")
            source = (ROOT / path).read_text()
            assert not name or f"def {name.partition('[')[0]}(" in source, test


def test_each_mutant_changes_something_and_no_two_are_alike() -> None:
    assert all(mutant.old != mutant.new for mutant in EVERY)
    assert len({(mutant.path, mutant.old, mutant.new) for mutant in EVERY}) == len(EVERY)


SAMPLE = Mutant(
    path="libs/weft/domain/job.py",
    old="return job.loans if step.to.holding and step.event not in NEW_EPOCH else ()",
    new="return job.loans if step.to.holding else ()",
    breaks="A service that restarts still owes what an earlier epoch borrowed.",
    tests=("tests/unit/test_job_steps.py::test_loans_last_as_long_as_the_epoch_that_borrowed",),
)


def test_a_mutant_is_killed_by_the_test_that_looks_and_survives_where_no_test_looks() -> None:
    elsewhere = structs.replace(SAMPLE, old="return max(self.ranks_used, max(", new="return max(0, max(")
    tried = try_mutants([SAMPLE, elsewhere, structs.replace(SAMPLE, old="no such text")])
    assert [one.outcome for one in tried] == [Outcome.KILLED, Outcome.SURVIVED, Outcome.NOT_APPLICABLE], tried


def test_a_test_that_cannot_run_without_a_mutant_kills_none() -> None:
    (tried,) = try_mutants([structs.replace(SAMPLE, tests=("tests/unit/test_job_steps.py::test_of_no_such_name",))])
    assert tried.outcome is Outcome.BROKEN


def test_mutants_are_chosen_by_words_of_their_area_path_and_sentence() -> None:
    assert chosen("") == EVERY
    assert {mutant.path for mutant in chosen("planning scheduling_pass.py pinned")} == {
        "libs/weft/planning/scheduling_pass.py"
    }
    assert chosen("no mutant has these words") == ()
