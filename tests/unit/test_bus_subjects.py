"""Whether a message came on its own subject, which NATS' permissions are about."""

from typing import ClassVar

import pytest

from libs.bus.wire import is_on
from libs.messages import Message


class Told(Message, frozen=True, kw_only=True):
    subject: ClassVar[str] = "weft.told.{pool}.{node_id}"
    pool: str
    node_id: str


@pytest.mark.parametrize(
    ("subject", "its_own"),
    [
        ("weft.told.a.node-1", True),
        ("weft.told.a.node-2", False),
        ("weft.told.b.node-1", False),
        ("weft.said.a.node-1", False),
        ("weft.told.a", False),
        ("weft.told.a.node-1.x", False),
        ("", False),
    ],
)
def test_a_message_is_on_its_own_subject_alone(subject: str, its_own: bool) -> None:
    assert is_on(Told(pool="a", node_id="node-1"), subject) is its_own


@pytest.mark.parametrize("value", ["a.b", "*", ">", "", "a b", "ä", "a$"])
def test_a_value_that_is_no_plain_token_is_on_no_subject(value: str) -> None:
    assert not is_on(Told(pool="a", node_id=value), f"weft.told.a.{value}")
