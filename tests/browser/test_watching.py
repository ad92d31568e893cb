"""What the other tests of this folder lean on: a page that misbehaves is seen to."""

from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
from aiohttp import web
from playwright.async_api import Browser

from tests.support.chromium import Watch, watched
from tests.support.tier import some

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src *; img-src * data:"
MISDEEDS = {
    "alert('in')": "a dialog: in",
    "console.error('odd')": "console: odd",
    "throw new Error('thrown')": "an error that nothing caught: thrown",
    "fetch('http://127.0.0.1:9/').catch(() => {})": "a request to another host: http://127.0.0.1:9/",
    "new Image().src = 'http://other.invalid/x.png'": "a request to another host: http://other.invalid/x.png",
    "fetch('/?token=weft_abc')": "a token in an address",
    "document.body.innerHTML = '<img src=x onerror=alert(1)>'": "Content Security Policy",
    "const script = document.createElement('script'); script.text = 'alert(1)'; document.body.append(script)": (
        "Content Security Policy"
    ),
}


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A page under a policy as strict as the gateway's, but for what it may speak with."""

    async def page(request: web.Request) -> web.Response:
        script = next(iter(request.query.values()), "")
        if request.path == "/script.js":
            return web.Response(text=script, content_type="text/javascript")
        html = "<!doctype html><title>t</title><link rel=icon href='data:,'><body><p>here</p><script src='/script.js?"
        body = f"{html}{request.rel_url.raw_query_string}'></script>"
        return web.Response(text=body, content_type="text/html", headers={"Content-Security-Policy": POLICY})

    application = web.Application()
    application.router.add_get("/{path:.*}", page)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def visited(browser: Browser, url: str, deed: str) -> Watch:
    async with watched(browser, url) as (page, watch):
        await page.goto(f"{url}/?script={quote(deed, safe='')}")
        await page.wait_for_timeout(100)
        await watch.weight()
    return watch


async def test_a_page_that_does_nothing_wrong_passes(browser: Browser, url: str) -> None:
    watch = await visited(browser, url, "console.log('well')")
    assert "GET /script.js" in watch.asked


@pytest.mark.parametrize(("deed", "seen"), some(2, list(MISDEEDS.items())), ids=[deed[:24] for deed in MISDEEDS])
async def test_a_page_that_misbehaves_fails(browser: Browser, url: str, deed: str, seen: str) -> None:
    with pytest.raises(AssertionError, match="must not") as failed:
        await visited(browser, url, deed)
    assert seen in str(failed.value)
