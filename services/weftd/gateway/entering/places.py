"""How many sessions of people there may be at this gateway."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from msgspec import Struct

from weftd.gateway.errors import RejectedError


class Entered(Struct):
    """Sessions at this gateway, or other things of which each takes a while, by tenant."""

    most: int
    most_per_tenant: int
    what: str = "sessions"
    tenants: Counter[str] = msgspec.field(default_factory=Counter)

    @contextmanager
    def one(self, tenant: str) -> Iterator[None]:
        if self.tenants.total() >= self.most or self.tenants[tenant] >= self.most_per_tenant:
            raise RejectedError(503, "", f"too many {self.what} are open; end some, or ask again later")
        self.tenants[tenant] += 1
        try:
            yield
        finally:
            self.tenants[tenant] -= 1
            if not self.tenants[tenant]:
                del self.tenants[tenant]
