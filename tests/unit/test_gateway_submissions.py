"""What takes long to read goes in turns of its tenant, and what there is no room for is not read again."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable

import pytest

from tests.support.builders import node
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from weft.domain.tenants import Allowance, AllowanceChosen
from weft.store.tenants import Access
from weftd.gateway.allowances import Allowances
from weftd.gateway.errors import RejectedError
from weftd.gateway.readmodel.snapshots import Snapshots
from weftd.gateway.submissions import ELEMENT_SECONDS, LARGE_BYTES, Submissions
from weftd.gateway.wakeup import Wakeups

QUIET, BUSY = Access(tenant="quiet"), Access(tenant="busy")
ROOM = Allowance(jobs_open_max=100, spec_bytes_max=3 * LARGE_BYTES, priority_max=100, may_be_unpreemptible=False)


class World:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now = 1000.0
        snapshots = Snapshots(
            self.store, clock=lambda: self.now, default_pool="default", volumes_allowed=(), shares=True
        )
        self.submissions = Submissions(
            store=self.store,
            snapshots=snapshots,
            allowances=Allowances(ROOM),
            registry=None,
            bus=MemoryBus(),
            wakeups=Wakeups(MemoryBus()),
            charge=self._charge,
            now=lambda: self.now,
            characters=self._characters,
        )
        self._count = 0
        self.charged = defaultdict[str, float](float)

    def _charge(self, tenant: str, seconds: float) -> None:
        self.charged[tenant] += seconds

    def _characters(self, count: int) -> str:
        self._count += 1
        return f"{self._count:0{count}}"

    async def with_nodes(self) -> "World":
        for tenant in ("quiet", "busy"):
            await self.store.add_token(tenant.encode().ljust(32), tenant=tenant, admin=False, label="", at=0.0)
        lease = await self.store.take_lease("default", holder="me", seen=None)
        assert lease is not None
        await self.store.save_node(lease, node(), event="joined", cause="")
        return self

    async def submit(self, who: Access, body: bytes, *, content: str = "json", key: str | None = None) -> str:
        made = await self.submissions.submit(who, body, content_type=f"application/{content}", key=key)
        return made.id


def body_of(size: int = 0) -> bytes:
    role = {"gpus": 0, "cpus": 0.1, "memory": "64MiB"}
    env = {f"V{number}": "x" * 1000 for number in range(size // 1000)}
    return json.dumps({"name": "a", "command": ["true"], "env": env, "roles": {"worker": role}}).encode()


LARGE = body_of(LARGE_BYTES + 1000)


@pytest.mark.parametrize("content", ["yaml", "json"])
async def test_what_takes_long_to_read_delays_only_its_own_tenant(content: str) -> None:
    w = await World().with_nodes()
    cycles = w.submissions.documents if content == "yaml" else w.submissions.large
    body = body_of() if content == "yaml" else LARGE
    cycle = await cycles.take("busy")
    waiting = asyncio.create_task(w.submit(BUSY, body, content=content))
    assert await w.submit(QUIET, body, content=content)
    assert not waiting.done()
    assert await w.submit(BUSY, body_of()), "what is small is read at once"
    cycle.end()
    assert await waiting


async def test_arrays_that_a_tenant_has_checked_delay_another_tenant_by_one_of_them() -> None:
    w = await World().with_nodes()
    role = {"gpus": 0, "cpus": 0.1, "memory": "64MiB"}
    array = json.dumps({"name": "a", "command": ["true"], "array": "0-999", "roles": {"worker": role}}).encode()
    checks = [asyncio.create_task(w.submissions.check(BUSY, array, content_type="application/json")) for _ in range(20)]
    await asyncio.sleep(0)
    quiet = array.replace(b"0-999", b"0-1")
    assert await w.submit(QUIET, quiet)
    assert sum(check.done() for check in checks) <= 2
    assert {(await check).elements for check in checks} == {1000}
    assert w.charged["busy"] >= 20 * 1000 * ELEMENT_SECONDS


async def test_what_there_was_no_room_for_is_refused_unread_until_there_is_more() -> None:
    w = await World().with_nodes()
    assert await w.submit(BUSY, LARGE)
    assert await w.submit(BUSY, LARGE)
    nonsense = b"{" * len(LARGE)
    assert await refused(lambda: w.submit(BUSY, nonsense)) == 400
    assert await refused(lambda: w.submit(BUSY, LARGE)) == 429
    assert await refused(lambda: w.submit(BUSY, nonsense)) == 429, "it was read"
    assert await refused(lambda: w.submit(BUSY, nonsense, key="k")) == 400, "it may be a repeat of what was accepted"
    assert await refused(lambda: w.submit(BUSY, nonsense[:-1])) == 400, "what is smaller might fit"
    assert await refused(lambda: w.submit(QUIET, nonsense)) == 400
    more = Access(tenant="busy", chosen=AllowanceChosen(spec_bytes_max=100 * LARGE_BYTES))
    assert await w.submit(more, LARGE), "it has another allowance now"


async def refused(submit: Callable[[], Awaitable[str]]) -> int:
    with pytest.raises(RejectedError) as error:
        await submit()
    return error.value.status
