"""The states of GPUs and nodes, from the signs that nodes report."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.support.sick import SickFleet
from weft.domain.health import HealthRecord, HealthState
from weft.health.catalogue import LEVELS, XIDS, code_of_xid, verdict_of
from weft.health.pool import most_out
from weft.health.state import HealthTimes, Reading, judged, returned

S = HealthState
TIMES = HealthTimes(clean_seconds=10, suspect_seconds=60, probation_seconds=100, longest_seconds=1000)


def reading(*levels: str, xids: dict[str, int] | None = None, resets: int = 0, boot: str = "t1") -> Reading:
    return Reading(
        node_id="node-1",
        gpu=0,
        uuid="u",
        xids=xids or {},
        resets=resets,
        levels=dict.fromkeys(levels, 1.0),
        boot=boot,
        node_boot="b1",
    )


def after(
    *readings: Reading, known: HealthRecord | None = None, may_take: bool = True, seconds: float = 1.0
) -> list[HealthRecord]:
    """The states after these readings, one each `seconds`."""
    found: list[HealthRecord] = []
    for number, each in enumerate(readings):
        known = judged(known, each, number * seconds, TIMES, may_take=lambda: may_take)
        found.append(known or HealthRecord(gpu=0))
    return found


def test_a_gpu_that_fell_off_the_bus_is_out_of_use_and_its_runs_are_lost() -> None:
    (found,) = after(reading(xids={"79": 1}))
    assert (found.state, found.code, found.lost) == (S.QUARANTINED, "xid-79", True)
    assert found.sentence == "Xid 79: it fell off the bus"
    assert "reset" in found.exit


def test_xids_of_programs_change_nothing() -> None:
    assert after(reading(xids={"13": 9, "31": 1, "43": 2, "45": 1, "999": 1, "other": 3}))[0].well


def test_a_quarantine_ends_only_after_a_reset_and_then_a_probation() -> None:
    sick, clean, reset = reading(xids={"79": 1}), reading(xids={"79": 1}), reading(xids={"79": 1}, resets=1)
    assert after(sick, *[clean] * 50)[-1].state is S.QUARANTINED
    states = [each.state for each in after(sick, clean, *[reset] * 200)]
    assert [state for state, before in zip(states[1:], states, strict=False) if state is not before] == [
        S.PROBATION,
        S.HEALTHY,
    ]


def test_a_reboot_of_the_node_counts_as_a_reset() -> None:
    rebooted = structs.replace(reading(boot="t2"), node_boot="b2")
    assert after(reading(xids={"79": 1}), *[rebooted] * 12)[-1].state is S.PROBATION


def test_a_level_that_is_gone_without_a_need_of_a_reset_ends_by_itself() -> None:
    node = [structs.replace(reading(*levels), gpu=None) for levels in (["driver-hangs"], *[[]] * 11)]
    states = [each.state for each in after(*node)]
    assert (states[0], states[5], states[-1]) == (S.QUARANTINED, S.QUARANTINED, S.PROBATION)


def test_a_failed_remapping_is_broken_until_a_person_returns_it() -> None:
    found = after(reading("row-remap-failed"), *[reading(resets=1)] * 500)[-1]
    assert (found.state, found.exit) == (S.BROKEN, "a person must repair or replace it, then `weft gpu return`")
    back = returned(found, "ann", 600.0, TIMES)
    assert (back.state, back.sentence) == (S.PROBATION, "returned by ann")
    assert judged(back, reading(), 1000.0, TIMES, may_take=lambda: True) is not None
    still = judged(back, reading("row-remap-failed"), 601.0, TIMES, may_take=lambda: True)
    assert still is not None
    assert still.state is S.BROKEN


def test_the_third_quarantine_in_a_while_is_a_break() -> None:
    known, at = None, 0.0
    states = []
    for offence in range(3):
        known = judged(known, reading(xids={"79": offence + 1}, resets=offence), at, TIMES, may_take=lambda: True)
        assert known is not None
        states.append(known.state)
        known, at = returned(known, "ann", at + 1, TIMES), at + 100
    assert states == [S.QUARANTINED, S.QUARANTINED, S.BROKEN]


def test_a_probation_doubles_with_each_quarantine() -> None:
    once = HealthRecord(gpu=0, uuid="u", state=S.QUARANTINED, offences=(0.0,), clean_since=0.0)
    twice = structs.replace(once, offences=(0.0, 1.0))
    for known, lasts in ((once, 100.0), (twice, 200.0)):
        back = judged(known, reading(), 10.0, TIMES, may_take=lambda: True)
        assert back is not None
        early = judged(back, reading(), 9.0 + lasts, TIMES, may_take=lambda: True)
        late = judged(back, reading(), 10.0 + lasts, TIMES, may_take=lambda: True)
        assert early is not None
        assert late is not None
        assert (early.state, late.state) == (S.PROBATION, S.HEALTHY)


def test_a_gpu_beyond_the_bound_is_only_told_of_and_taken_out_when_there_is_room() -> None:
    (told,) = after(reading(xids={"79": 1}), may_take=False)
    assert (told.state, told.due, told.lost) == (S.SUSPECT, True, False)
    later = judged(told, reading(xids={"79": 1}), 5.0, TIMES, may_take=lambda: True)
    assert later is not None
    assert (later.state, later.lost, later.due) == (S.QUARANTINED, True, False)


def test_a_count_of_a_former_telemetry_is_not_taken_for_news() -> None:
    sick = after(reading(xids={"79": 2}))[0]
    back = returned(sick, "ann", 1.0, TIMES)
    assert judged(back, reading(xids={"79": 2}), 2.0, TIMES, may_take=lambda: True) == back
    again = judged(back, reading(xids={"79": 1}, boot="t2"), 3.0, TIMES, may_take=lambda: True)
    assert again is not None
    assert again.state is S.QUARANTINED


def test_an_xid_beside_a_worse_level_is_judged_with_it_and_a_reset_after_both_counts() -> None:
    sick = reading("off-bus", xids={"94": 1})
    reset = reading(xids={"94": 1}, resets=1)
    states = after(sick, *[reset] * 12)
    assert (states[0].code, states[-1].state) == ("off-bus", S.PROBATION)


def test_another_gpu_at_the_same_index_begins_healthy() -> None:
    sick = after(reading(xids={"79": 1}))[0]
    assert judged(sick, structs.replace(reading(), uuid="new"), 1.0, TIMES, may_take=lambda: True) is None


def test_every_sign_has_a_verdict_and_no_odd_name_has_one() -> None:
    assert all(verdict_of(code_of_xid(str(xid))) is verdict for xid, verdict in XIDS.items())
    assert all(verdict_of(level) is verdict for level, verdict in LEVELS.items())
    assert [verdict_of(odd) for odd in ("", "xid-", "xid-x", "xid-9999999", "xid-²", "well")] == [None] * 6


# any signals


SIGNS = st.sampled_from([*LEVELS, *(code_of_xid(str(xid)) for xid in (*XIDS, 13, 31))])
EVENTS = st.lists(st.tuples(st.integers(0, 11), SIGNS | st.sampled_from(["clear", "reset"])), max_size=60)


def lived(events: Sequence[tuple[int, str]]) -> SickFleet:
    fleet = SickFleet(3, 4, TIMES)
    for place, sign in events:
        fleet.happens(place, sign)
        fleet.report(1.0)
        assert fleet.out <= most_out(len(fleet.places))
    return fleet


@given(EVENTS)
def test_the_pool_never_loses_more_than_its_bound_and_every_gpu_that_is_clean_is_healthy_or_broken(
    events: list[tuple[int, str]],
) -> None:
    fleet = lived(events)
    for place in range(len(fleet.places)):
        fleet.happens(place, "reset")
    for _ in range(40):
        fleet.report(100.0)
        assert fleet.out <= most_out(len(fleet.places))
    for node in fleet.nodes.values():
        for each in node.health:
            assert each.well or (each.state is S.BROKEN and each.sentence and each.exit), each


@given(EVENTS)
def test_every_state_but_healthy_has_a_code_a_sentence_numbers_and_an_exit(events: list[tuple[int, str]]) -> None:
    for health in lived(events).history:
        for each in health:
            assert each.well or (each.code and each.sentence and each.exit), each
            assert each.well or each.numbers or each.code == "returned", each


@given(EVENTS)
def test_the_same_signals_lead_to_the_same_states(events: list[tuple[int, str]]) -> None:
    assert lived(events).history == lived(events).history
