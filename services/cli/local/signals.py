"""Ctrl-C and its kin: the first asks to stop in order, the second is in a hurry."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stops:
    """What the person has asked for so far."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()

    def heard(self) -> None:
        (self.hurry if self.asked.is_set() else self.asked).set()


@contextmanager
def stops_on_signals() -> Iterator[Stops]:
    """While in the block, signals end nothing by themselves."""
    loop, stops = asyncio.get_running_loop(), Stops()
    for number in SIGNALS:
        loop.add_signal_handler(number, stops.heard)
    try:
        yield stops
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
