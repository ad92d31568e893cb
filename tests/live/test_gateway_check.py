"""A specification is checked as a submission checks it, and nothing is stored."""

import msgspec

from tests.support.gateway_world import World
from weft.messages.http import Checked

YAML = {"Content-Type": "application/yaml"}


async def test_a_specification_that_would_be_taken_is_read_back_and_not_stored(world: World) -> None:
    body = b"name: lr\ncommand: [train, '--lr={lr}']\nsweep: {lr: [0.1, 0.2, 0.3]}\n"
    status, answer, _ = await world.ask("POST", "/v1/jobs/check", data=body, headers=YAML)
    assert status == 200
    checked = msgspec.json.decode(answer, type=Checked)
    assert (checked.spec.name, checked.elements) == ("lr", 3)
    assert (await world.alice.jobs()).jobs == ()


async def test_all_mistakes_are_told_with_their_fields_as_by_a_submission(world: World) -> None:
    told = []
    for path in ("/v1/jobs/check", "/v1/jobs"):
        body = b"name: Bad Name\nkind: none\ncommand: []\n"
        status, answer, _ = await world.ask("POST", path, data=body, headers=YAML)
        assert status == 400
        told.append(msgspec.json.decode(answer)["error"])
    assert told[0] == told[1]
    assert {each["field"] for each in told[0]["errors"]} >= {"name", "kind"}
