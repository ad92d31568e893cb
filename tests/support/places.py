"""Where a server of a test runs: on this machine, or on a host of a laboratory."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Place(Protocol):
    @property
    def address(self) -> str: ...

    def there(self, work: Callable[[], T]) -> T:
        """Do it in the network of the place: what it connects to, and what programs that it starts listen on."""


class ThisMachine:
    """Its loopback address."""

    address = "127.0.0.1"

    def there(self, work: Callable[[], T]) -> T:
        return work()


HERE = ThisMachine()
