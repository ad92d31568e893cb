"""Mutants of the autoscaler of services."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        path="libs/weft/serving/autoscaler.py",
        old=("        if load.queued or self._alarm(load) or wanted > len(there):\n            return None\n"),
        new="",
        breaks="A service shrinks while requests wait.",
        tests=("tests/unit/test_serving_autoscaler.py::test_nothing_shrinks_while_requests_wait",),
    ),
    Mutant(
        path="libs/weft/serving/autoscaler.py",
        old="self._firm_from = max(self._firm_from, load.at + self._hold)",
        new="pass",
        breaks="A service shrinks as soon as its router reports again, before its load is known.",
        tests=("tests/unit/test_serving_autoscaler.py::test_nothing_shrinks_for_a_while_after_no_router_reported",),
    ),
    Mutant(
        path="libs/weft/serving/autoscaler.py",
        old=("        if replicas <= self._too_few(rate, at):\n            return False\n"),
        new="",
        breaks="A size that failed at a rate is tried again at that rate.",
        tests=(
            "tests/unit/test_serving_autoscaler.py::test_a_size_that_failed_at_a_rate_is_not_tried_again_at_that_rate",
        ),
    ),
    Mutant(
        path="libs/weft/serving/autoscaler.py",
        old="have = len(there) - len(late)",
        new="have = len(there)",
        breaks="A replica that does not start is waited for without end.",
        tests=(
            "tests/unit/test_serving_autoscaler.py::test_complaint_1_a_replica_that_does_not_start_is_replaced_by_another_after_one_and_a_half_times_the_usual",
        ),
    ),
    Mutant(
        path="libs/weft/serving/autoscaler.py",
        old="hold = self._loan_hold if borrowed else self._hold",
        new="hold = self._hold",
        breaks="Borrowed replicas are kept as long as own ones.",
        tests=("tests/unit/test_serving_autoscaler.py::test_borrowed_replicas_are_returned_sooner_than_own_ones",),
    ),
    Mutant(
        path="libs/weft/serving/autoscaler.py",
        old="wanted = min(goal.most, max(goal.least, load.wanted))",
        new="wanted = load.wanted",
        breaks="A service has a size outside the range that its user set.",
        tests=("tests/unit/test_serving_autoscaler.py::test_whatever_is_told_the_size_stays_within_its_bounds",),
    ),
    Mutant(
        path="libs/weft/serving/autoscaler.py",
        old="if load.at - self._short_since >= SHORT_SECONDS:",
        new="if False:",
        breaks="A service that cannot have the replicas it needs does not say so.",
        tests=(
            "tests/unit/test_serving_autoscaler.py::test_complaint_9_what_cannot_be_had_is_said_and_withdrawn_when_it_is_no_longer_needed",
        ),
    ),
)
