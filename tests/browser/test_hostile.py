"""What jobs and nodes tell is text, whatever it looks like: nothing of it is done. The watch over every page fails a
test for a dialog, a window, a request elsewhere, or anything that the page's policy had to stop."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from tests.support.dashboard import PAGES, dashboard
from tests.support.gateway import Place
from tests.support.renaming import renaming
from tests.support.shown import EVIL, Shown, shown
from tests.support.tier import some

SETTLE_MS = 500
MADE_BY_IT = "document.querySelectorAll('img[src=x], svg[onload], main script, [onerror], [onload]').length"


@pytest.fixture(scope="module")
async def cluster(servers: Place) -> AsyncIterator[Shown]:
    async with shown(servers) as made:
        yield made


@pytest.mark.parametrize("who", some(1, ["alice", "admin"]))
async def test_a_name_full_of_markup_and_escapes_is_shown_as_it_is(browser: Browser, cluster: Shown, who: str) -> None:
    seen = []
    async with (
        renaming(cluster.url, "mnist", EVIL) as url,
        dashboard(browser, url, cluster.world.tokens[who]) as window,
    ):
        for place in (*PAGES, *(f"job/{cluster.id(name)}" for name in ("mnist", "chat", "wants-eight"))):
            await window.go(place)
            await window.page.wait_for_timeout(SETTLE_MS)
            assert await window.page.evaluate(MADE_BY_IT) == 0
            assert str(1234 * 5678) not in await window.text()
            seen += ["<script>alert('script')</script>" in await window.main.inner_text()]
            assert "\x1b" not in await window.text()
            assert "\u202e" not in await window.text()
    assert any(seen)
