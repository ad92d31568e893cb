"""Arrays and dependencies over HTTP, a real Postgres and a real NATS: submitted, shown, asked about, and refused."""

import msgspec
import pytest

from tests.support.gateway import admitted
from tests.support.gateway_world import World, error_of
from weft.client import Refused
from weft.domain.dependencies import When
from weft.messages.asks import AskKind
from weft.messages.live import QueueView


def body(**fields: object) -> bytes:
    return msgspec.json.encode({"name": "part", "command": ["true"], **fields})


async def test_a_thousand_elements_are_one_request_one_row_and_one_cancel(world: World) -> None:
    submitted = await world.alice.submit(body(array="0-999%8"), key="many")
    assert (submitted.id[:2], submitted.elements, submitted.created) == ("a-", 1_000, True)
    again = await world.alice.submit(body(array="0-999%8"), key="many")
    assert (again.id, again.created) == (submitted.id, False)
    (row,) = (await world.alice.arrays(opened=True)).arrays
    assert (row.id, row.name, row.elements, row.states, row.at_once) == (
        submitted.id,
        "part",
        1_000,
        {"queued": 1_000},
        8,
    )
    assert (await world.alice.jobs(elements=False)).jobs == ()
    assert (await world.alice.job(f"{submitted.id}_3")).name == "part-3"
    assert (await world.alice.job("part_7")).id.endswith("-7")
    some = await world.alice.cancel_array("part", indices="1-3,7")
    assert (some.ask, some.elements) == (AskKind.CANCEL, 4)
    rest = await world.alice.cancel_array(submitted.id)
    assert rest.elements == 996
    with pytest.raises(Refused, match="nothing is left"):
        await world.alice.cancel_array(submitted.id)


async def test_what_a_job_waits_for_is_found_by_id_name_and_element_and_stored_by_its_id(world: World) -> None:
    first = await world.alice.submit(body(name="first"), key="first")
    array = await world.alice.submit(body(name="parts", array="0-2"))
    after = [{"job": "first"}, {"job": "parts", "when": "any"}, {"job": "parts_1", "when": "started"}]
    waits = await world.alice.submit(body(name="last", after=after), key="waits")
    found = (await world.alice.job(waits.id)).spec
    assert found is not None
    element = f"j-{array.id[2:]}-1"
    assert [(one.job, one.when) for one in found.after] == [
        (first.id, When.OK),
        (array.id, When.ANY),
        (element, When.STARTED),
    ]
    await world.alice.submit(body(name="first"), key="another")  # the name is another job's now
    assert (await world.alice.submit(body(name="last", after=after), key="waits")).id == waits.id
    each = await world.alice.submit(
        body(name="each", array="0-2", after=[{"job": array.id, "when": "any", "element_wise": True}])
    )
    second = (await world.alice.job(f"{each.id}_1")).spec
    assert second is not None
    assert second.after[0].job == element


async def test_what_is_not_there_or_anothers_is_refused_in_the_same_words(world: World) -> None:
    theirs = await world.bob.submit(body(name="theirs"))
    array = await world.bob.submit(body(name="their-parts", array="0-2"))
    before = await world.stored()
    for name in (theirs.id, "theirs", array.id, f"{array.id}_1", "j-none", "a-none", "none", "last-of-all"):
        status, answer, _ = await world.ask("POST", "/v1/jobs", data=body(after=[{"job": name}]))
        assert (status, error_of(answer)) == (
            404,
            ("after[0].job", f"no job or array of this tenant has the id or the name {name}"),
        )
    for path in ("", "/elements"):
        status, _, _ = await world.ask("GET", f"/v1/arrays/{array.id}{path}")
        assert status == 404
    for verb in ("cancel", "requeue"):
        status, _, _ = await world.ask("POST", f"/v1/arrays/{array.id}/{verb}", data=b"{}")
        assert status == 404
    assert await world.stored() == before


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"array": "0-999999999"}, "array"),
        ({"array": "0-3%0"}, "array"),
        ({"array": "1-999999999999%0"}, "array"),
        ({"array": "\u0660-\u0669"}, "array"),
        ({"array": 3}, "array"),
        ({"array": "0-9", "element": {"array": "a-1", "name": "x", "index": 1}}, "element"),
        ({"after": [{"job": "x"}] * 101}, "after"),
        ({"sweep": {"lr": [[1]]}}, "sweep.lr[0]"),
        ({"array": "0-9", "name": "x" * 62}, "name"),
    ],
)
async def test_bad_arrays_change_nothing_and_name_their_field(
    world: World, fields: dict[str, object], field: str
) -> None:
    await world.refuses("/v1/jobs", body(**fields), field)


async def test_an_array_of_large_specifications_is_refused_whole(world: World) -> None:
    before = await world.stored()
    between = {"sweep": {"x": ["a", "b" * 1000, "c"]}, "command": ["{x}" * 130] * 300}  # 39 MB for the second element
    for wanted in (body(array="0-9999", env={"A": "x" * 10_000}), body(**between)):
        status, answer, _ = await world.ask("POST", "/v1/jobs", data=wanted)
        assert (status, error_of(answer)[0]) == (413, "array")
    assert await world.stored() == before


async def test_the_queue_shows_an_array_as_one_row_where_that_is_asked_for(world: World) -> None:
    single = await world.alice.submit(body(name="single"))
    array = await world.alice.submit(body(array="0-4"))
    await admitted(world.place, world.lease, single.id)
    assert len((await world.alice.queue()).rows) == 6
    status, answer, _ = await world.ask("GET", "/v1/queue?arrays=1")
    assert status == 200
    view = msgspec.json.decode(answer, type=QueueView)
    assert view.total == 2
    rows = {row.id: row for row in view.rows}
    assert rows[single.id].array == ""
    (row,) = [row for row in view.rows if row.array]
    assert (row.array, row.name, row.elements) == (array.id, "part", {"queued": 5})
