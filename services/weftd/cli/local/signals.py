"""Ctrl-C and SIGTERM: the first stops in order, the second at once."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stops:
    """The signals so far."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()

    def heard(self) -> None:
        (self.hurry if self.asked.is_set() else self.asked).set()


@contextmanager
def stops_on_signals() -> Iterator[Stops]:
    """During the block, signals set `Stops` and end nothing by themselves."""
    loop, stops = asyncio.get_running_loop(), Stops()
    for number in SIGNALS:
        loop.add_signal_handler(number, stops.heard)
    try:
        yield stops
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
