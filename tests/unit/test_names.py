"""A name whose lookup hangs keeps no other name waiting, and is looked up once at a time."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from weft.names import has_address


class Names:
    """In place of the resolver: `gone` hangs until it is let go, `unknown` has no address."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let_go = threading.Event()

    def getaddrinfo(self, host: str, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(host)
        if host == "gone":
            self.let_go.wait(10)
        if host != "there":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return []


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    yield made
    made.let_go.set()


async def test_a_lookup_that_hangs_is_made_once_and_delays_no_other_name(names: Names) -> None:
    async def is_gone() -> None:
        async with asyncio.timeout(0.05):
            await has_address("gone")

    for _ in range(20):
        with pytest.raises(TimeoutError):
            await is_gone()
    async with asyncio.timeout(5):
        await has_address("there")
    assert names.asked == ["gone", "there"]
    waiting = asyncio.create_task(has_address("gone"))
    await asyncio.sleep(0)
    names.let_go.set()
    with pytest.raises(OSError, match="no such name"):
        await waiting


async def test_a_name_is_asked_for_again_once_its_answer_was_there(names: Names) -> None:
    for _ in range(2):
        with pytest.raises(OSError, match="no such name"):
            await has_address("unknown")
    assert names.asked == ["unknown", "unknown"]


@pytest.mark.parametrize("host", [None, "", "127.0.0.1", "::1", "fe80::1"])
async def test_an_address_is_no_name(host: str | None, names: Names) -> None:
    await has_address(host)
    assert names.asked == []
