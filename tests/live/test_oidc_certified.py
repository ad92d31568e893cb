"""Signing in with the certified provider of npm, `oidc-provider`, which enforces PKCE: an independent implementation.

`npm install --prefix FOLDER oidc-provider@9.13.3` fetches it; WEFT_OIDC_PROVIDER=FOLDER/node_modules names it.
"""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urljoin

import aiohttp
import pytest
from msgspec import structs

pytest.importorskip("joserfc", reason="joserfc is not installed: `make setup` installs the locked requirements")

from tests.support.gateway import Place
from tests.support.gateway_world import SETTINGS, opened
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET
from tests.support.routers import free_port
from tests.support.tree import ROOT
from weftd.gateway.limits.cookies import COOKIE, PROOF_HEADER
from weftd.gateway.settings import OidcSettings

PROGRAM = ROOT / "tests/support/programs/oidc_provider.mjs"
SECONDS_MAX = 60.0
STEPS_MAX = 8


@asynccontextmanager
async def certified_provider(callback: str, log: Path) -> AsyncIterator[str]:
    """The issuer of an oidc-provider in a process of its own."""
    modules, node = os.environ.get("WEFT_OIDC_PROVIDER", ""), shutil.which("node")
    if not modules or node is None:
        pytest.skip("no oidc-provider of npm here: WEFT_OIDC_PROVIDER names the folder node_modules that has it")
    port = free_port()
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *(node, str(PROGRAM), modules, str(port), callback), stdout=written, stderr=written
        )
    issuer = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(SECONDS_MAX):
            while True:
                assert process.returncode is None, f"the provider ended: see {log}"
                try:
                    async with http.get(f"{issuer}/.well-known/openid-configuration") as answer:
                        assert (await answer.json())["issuer"] == issuer
                    break
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.1)
        yield issuer
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def through_its_pages(http: aiohttp.ClientSession, to: str, callback: str, name: str) -> str:
    """Follow the provider's redirects and fill in its form, up to the address with the code."""
    for _ in range(STEPS_MAX):
        if to.startswith(callback):
            return to
        async with http.get(to, allow_redirects=False) as answer:
            page, here = await answer.text(), to
            to = urljoin(here, answer.headers.get("Location", ""))
        if answer.status == 200:
            action = re.search(r'action="([^"]+)"', page)
            assert action is not None, page
            form = {"prompt": "login", "login": name, "password": "any"}
            async with http.post(urljoin(here, action[1]), data=form, allow_redirects=False) as answer:
                to = urljoin(here, answer.headers["Location"])
    raise AssertionError(f"the provider ends at {to}")


async def test_a_person_signs_in_and_submits(servers: Place, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    callback = f"{url}/v1/oidc/callback"
    async with certified_provider(callback, tmp_path / "provider.log") as issuer:
        oidc = OidcSettings(
            oidc_issuer=issuer,
            oidc_client_id=CLIENT_ID,
            oidc_gateway_url=url,
            oidc_scopes=("openid", "email", "groups"),
            oidc_grants=("ml=vision:user",),
        )
        settings = structs.replace(SETTINGS, port=port, oidc=oidc)
        jar = aiohttp.CookieJar(unsafe=True)
        async with (
            opened(servers, settings, oidc_secret=CLIENT_SECRET, port=port) as world,
            aiohttp.ClientSession(cookie_jar=jar) as http,
        ):
            async with http.get(f"{url}/v1/oidc/login", allow_redirects=False) as answer:
                assert answer.status == 302, await answer.text()
                to = answer.headers["Location"]
            back = await through_its_pages(http, to, callback, "grace")
            async with http.get(back, allow_redirects=False) as answer:
                assert answer.status == 302, await answer.text()
                code = answer.headers["Location"].partition("=")[2]
            async with http.get(back, allow_redirects=False) as answer:
                assert answer.status == 401, "the provider takes its code once"
            async with http.post(f"{url}/v1/sessions", json={"code": code}) as answer:
                made, cookie = await answer.json(), answer.cookies[COOKIE]
            (person,) = (await world.admin.people()).people
            assert (person.name, person.tenant, person.role) == ("grace@example.org", "vision", "user")
            headers = {"Cookie": f"{COOKIE}={cookie.value}", PROOF_HEADER: made["proof"]}
            body = {"name": "hers", "command": ["true"], "roles": {"worker": {}}}
            async with world.http.post(f"{url}/v1/jobs", json=body, headers=headers) as answer:
                assert answer.status == 201, await answer.text()
                job = await answer.json()
            assert (await world.admin.job(job["id"])).submitter == "grace@example.org"
