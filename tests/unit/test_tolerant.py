"""What a later version wrote is read by this one: what it does not know is left out, what is wrong stays wrong."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from tests.support.builders import spec
from tests.support.tier import examples
from weft.bus.wire import decode, encode
from weft.domain.spec import JobSpec, Volume
from weft.messages import tolerant
from weft.messages.nodes import JobOrder, NodeDesired, NodeReported, ProgressSeen, ReadSecrets
from weft.messages.signals import NodeSampled
from weft.messages.tolerant import TolerantDecoder

SPECS = TolerantDecoder(JobSpec)
WRITTEN = [
    msgspec.to_builtins(made)
    for made in (
        spec("train", retries={"max": 2}, volumes=[{"name": "data"}], time_limit="2h"),
        spec(
            "serve",
            kind="inference",
            service={"ready": "/healthz"},
            objective={"latency": "200ms", "rate": 2},
            roles={
                "server": {"replicas": {"min": 0, "want": 1, "max": 4}, "share": {"request": 0.5, "memory": "1GiB"}}
            },
        ),
    )
]
LATER = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
FREE = {"roles", "env", "labels", "secrets", "secret_env"}  # their names are the user's


@st.composite
def of_later_versions(draw: st.DrawFn) -> tuple[Any, Any]:
    """A specification as it is known here, and with fields of a later version in any of its parts."""

    def later(value: Any, free: bool) -> Any:
        if isinstance(value, list):
            return [later(item, False) for item in value]
        if not isinstance(value, dict):
            return value
        grown = {name: later(item, not free and name in FREE) for name, item in value.items()}
        if not free and draw(st.booleans()):
            grown["later_field"] = draw(LATER)
        return grown

    known = draw(st.sampled_from(WRITTEN))
    return known, later(known, False)


@given(of_later_versions())
@settings(max_examples=examples(200), deadline=None)
def test_fields_of_a_later_version_are_left_out_and_all_others_read(written: tuple[Any, Any]) -> None:
    known, later = written
    assert SPECS.decode(msgspec.json.encode(later)) == msgspec.convert(known, JobSpec)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": 7}',
        '{"name": "a", "command": ["true"], "kind": "of-later"}',
        '{"later": ' + "[" * 100_000 + "]" * 100_000 + ', "name": 7}',
        '{"name": "a", "command": ["true"], "later": 1, "roles": {"worker": {"gpus": -1}}}',
        '{"name"',
    ],
)
def test_what_is_wrong_is_refused_in_the_words_of_a_decoder_that_is_not_tolerant(text: str) -> None:
    with pytest.raises((msgspec.DecodeError, RecursionError)) as strict:
        msgspec.json.decode(text, type=JobSpec)
    with pytest.raises(msgspec.DecodeError) as tolerant:
        SPECS.decode(text)
    if isinstance(strict.value, msgspec.DecodeError):
        assert str(tolerant.value) == str(strict.value)


def test_nonsense_costs_no_more_than_a_decoder_that_is_not_tolerant_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may send eight megabytes of it, again and again."""
    looked_at: list[Any] = []
    monkeypatch.setattr(tolerant, "_known", lambda value, _: looked_at.append(value))
    with pytest.raises(msgspec.DecodeError):
        decode(NodeReported, encode({"node_id": 7, "seq": 1, "runs": [0] * 100_000, "later": 1}))
    assert looked_at == []


@pytest.mark.parametrize("kind", [NodeReported, ProgressSeen, ReadSecrets, NodeSampled])
def test_an_unknown_field_is_no_error_in_any_part_of_what_nodes_send(kind: type[msgspec.Struct]) -> None:
    """So no node can have its messages read in the slow way."""

    def parts(described: inspect.Type) -> Iterator[type]:
        match described:
            case inspect.StructType(cls=cls, fields=fields):
                yield cls
                for field in fields:
                    yield from parts(field.type)
            case inspect.DictType(value_type=item) | inspect.VarTupleType(item_type=item):
                yield from parts(item)
            case inspect.UnionType(types=types):
                for one in types:
                    yield from parts(one)

    strict = [cls for cls in parts(inspect.type_info(kind)) if cls.__struct_config__.forbid_unknown_fields]
    assert strict == []


def test_an_order_of_a_later_scheduler_reaches_its_node() -> None:
    """A volume is a part of the specification that travels on."""
    order = JobOrder(
        job_id="j-1",
        name="train",
        tenant="alice",
        epoch=0,
        world_size=1,
        grace=10.0,
        master_address="127.0.0.1",
        master_port=20000,
        volumes=(Volume(name="data"),),
        roles=(),
        ranks=(),
    )
    said = msgspec.to_builtins(NodeDesired(seq=1, jobs=(order,)))
    said["jobs"][0]["volumes"][0]["snapshot"] = "weekly"
    assert decode(NodeDesired, encode(said)).jobs == (order,)
