"""The scene of the tuner where no CPU limit can be enforced."""

from types import SimpleNamespace
from typing import Any, cast

from weft.client import Client
from weftd.cli.demo.board import Board
from weftd.cli.demo.systems import NOT_ENFORCED, feed


class Gateway:
    """A cluster whose second node holds no job to its CPUs; it takes no job."""

    async def nodes(self) -> Any:
        nodes = [SimpleNamespace(not_enforced=()), SimpleNamespace(not_enforced=("cpus", "memory"))]
        return SimpleNamespace(nodes=nodes)


async def test_where_no_limit_is_enforced_the_scene_of_the_tuner_is_left_out_with_one_sentence() -> None:
    told: list[tuple[str, str]] = []
    client = cast("Client", Gateway())
    board = Board(client, told=lambda name, line: told.append((name, line)))
    await feed(client, board)
    assert board.left_out == {"starved": NOT_ENFORCED}
    assert told == [("starved", f"left out: {NOT_ENFORCED}")]
