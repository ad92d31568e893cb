"""Mutants of the arbiter, which gives the processes of a shared GPU their turns."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        path="services/weftd/arbiter/thinking/device.py",
        old="self._end(turn, min(us, now - turn.granted_at + in_flight), now)",
        new="self._end(turn, us, now)",
        breaks="A slot is charged for more time than passed.",
        tests=(
            "tests/unit/test_arbiter_sharing.py::test_a_slot_is_charged_for_no_more_time_than_passed_whatever_its_process_reports",
        ),
    ),
    Mutant(
        path="services/weftd/arbiter/thinking/device.py",
        old=(
            "        if not is_active and not self._lingers(slot, now):\n"
            "            self._catch_up(slot, self._virtual_at(now))\n"
        ),
        new="",
        breaks="A slot that was idle for long has the GPU alone when it comes back.",
        tests=("tests/unit/test_arbiter_sharing.py::test_a_slot_that_was_idle_is_owed_nothing_for_that_time",),
    ),
    Mutant(
        path="services/weftd/arbiter/thinking/device.py",
        old="turn.slot.virtual = min(turn.slot.virtual, self._virtual + self._pace.debt * 1000 / turn.slot.weight)",
        new="pass",
        breaks="A slot that held the GPU too long once is kept from it for as long again.",
        tests=(
            "tests/unit/test_arbiter_sharing.py::test_a_slot_that_held_the_gpu_too_long_pays_for_no_more_than_half_a_second",
        ),
    ),
    Mutant(
        path="services/weftd/arbiter/thinking/device.py",
        old="self._unused -= turn.slot.paid(us, max(0, held - turn.overlap) // 2, now)",
        new="self._unused -= turn.slot.paid(us, 0, now)",
        breaks="A process that reports no use has the GPU for nothing.",
        tests=(
            "tests/unit/test_arbiter_sharing.py::test_a_process_that_says_it_used_nothing_has_no_more_than_two_parts_in_three",
        ),
    ),
    Mutant(
        path="services/weftd/arbiter/thinking/device.py",
        old="if now >= turn.revoke_at or turn.slot.terms.hold or overtaken:",
        new="if now >= turn.revoke_at or overtaken:",
        breaks="A slot on hold keeps its turn.",
        tests=("tests/unit/test_arbiter_sharing.py::test_a_hold_ends_the_turn_and_its_end_gives_it_back",),
    ),
    Mutant(
        path="services/weftd/arbiter/thinking/slot.py",
        old="return self.terms.latency and self.credit > 0",
        new="return self.terms.latency",
        breaks="A latency slot takes more than its request from the others.",
        tests=("tests/unit/test_arbiter_sharing.py::test_a_latency_slot_that_never_ends_has_its_request_and_no_more",),
    ),
    Mutant(
        path="services/weftd/arbiter/thinking/slot.py",
        old="return self.limit >= 1000 or self.level >= self.need",
        new="return True",
        breaks="A slot exceeds its limit while the GPU is idle.",
        tests=("tests/unit/test_arbiter_sharing.py::test_a_limit_holds_in_every_second_and_nothing_stalls",),
    ),
    Mutant(
        path="services/weftd/arbiter/thinking/first.py",
        old="if us <= self._pace.first and had < self._pace.firsts:",
        new="if us <= self._pace.first:",
        breaks="A slot that connects again and again has first turns without end.",
        tests=("tests/unit/test_arbiter_sharing.py::test_a_slot_that_connects_again_and_again_has_few_first_turns",),
    ),
)
