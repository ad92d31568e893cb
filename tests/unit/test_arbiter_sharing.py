"""What the turns of the arbiter come to: the core with modelled processes and a modelled GPU, in virtual time."""

import pytest

from tests.support.sharing import SECOND, Node, Process

TWO_POINTS = 0.02


@pytest.mark.parametrize("parts", [(100, 900), (300, 700), (500, 500), (200, 300, 500), (1, 999), (50,) * 16])
@pytest.mark.parametrize("kernel", [200, 1_000])
def test_saturated_slots_have_what_is_due_in_every_second(parts: tuple[int, ...], kernel: int) -> None:
    node = Node(seed=1)
    for number, part in enumerate(parts):
        node.serve(f"s{number}", part)
        Process(node, f"s{number}", kernel=kernel)
    node.run(6 * SECOND)
    for number, part in enumerate(parts):
        due = part / sum(parts)
        shares = list(node.shares(f"s{number}", SECOND, 6 * SECOND))
        assert all(abs(share - due) <= TWO_POINTS for share in shares), (number, min(shares), max(shares))
    total = sum(node.used(f"s{number}", SECOND, 6 * SECOND) for number in range(len(parts))) / (5 * SECOND)
    assert total >= 0.97
