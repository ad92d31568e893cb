"""A bench of fairness can fail: nothing that went wrong for the quiet tenant makes a figure better."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.bench.fairness.aims import MEBIBYTE, Attack, Memory, Window, aims

REST = Window(seconds={"submit": [0.010] * 100, "start": [0.100] * 100, "get": [0.005] * 100})
SLOW = Window(seconds={"submit": [0.060] * 100, "start": [0.210] * 100, "get": [0.051] * 100})
MEMORY = Memory(first={"gateway": 40 * MEBIBYTE, "postgres": 700 * MEBIBYTE}, second={"gateway": 41 * MEBIBYTE})
RECOVERED_SECONDS_MAX = 20.0


def attack(**fields: Any) -> Attack:
    usual: dict[str, Any] = {
        "name": "a",
        "before": REST,
        "during": REST,
        "after": REST,
        "memory": MEMORY,
        "restarts": {},
        "well_seconds": 1.0,
        "recovered_seconds": 1.0,
        "recovered": True,
        "answers": {"429": 100},
    }
    return Attack(**{**usual, **fields})


def not_met(*attacks: Attack) -> set[str]:
    return {name for name, aim in aims(attacks, recovered_seconds_max=RECOVERED_SECONDS_MAX).items() if not aim.met}


def test_all_is_met_where_an_attack_changes_nothing() -> None:
    assert not_met(attack()) == set()


def test_what_takes_more_than_twice_as_long_and_more_than_50_ms_is_not_met() -> None:
    assert not_met(attack(during=SLOW)) == {"a.submit_p99_ms", "a.start_p99_ms", "a.get_p99_ms"}
    assert not_met(attack(during=SLOW, before=SLOW, after=SLOW)) == set()


def test_a_failure_is_not_met_however_fast_it_was() -> None:
    assert not_met(attack(during=replace(REST, failed={"get 503": 1}))) == {"a.quiet_failed"}


def test_a_failure_at_rest_is_counted_once() -> None:
    failing = replace(REST, failed={"submit 503": 2})
    attacks = [attack(after=failing), attack(name="b", before=failing)]
    assert aims(attacks, recovered_seconds_max=RECOVERED_SECONDS_MAX)["rest.quiet_failed"].value == 2
    assert not_met(*attacks) == {"rest.quiet_failed"}


def test_a_cluster_that_is_not_well_again_and_a_process_that_ended_are_not_met() -> None:
    assert not_met(attack(after=None, recovered=False)) == {"a.recovered_seconds"}
    assert not_met(attack(well_seconds=10.5)) == {"a.well_seconds"}
    assert not_met(attack(restarts={"scheduler": 1})) == {"a.processes_ended"}


@pytest.mark.parametrize(
    ("memory", "name"),
    [
        (Memory(first={"gateway": 513 * MEBIBYTE}, second={}), "memory.gateway_mib"),
        (Memory(first={"postgres": 1025 * MEBIBYTE}, second={}), "memory.postgres_mib"),
        (Memory(first={"gateway": 40 * MEBIBYTE}, second={"gateway": 105 * MEBIBYTE}), "memory.gateway_growth_mib"),
    ],
)
def test_memory_beyond_its_bound_or_that_grows_is_not_met(memory: Memory, name: str) -> None:
    assert not_met(attack(), attack(name="b", memory=memory)) == {name}
