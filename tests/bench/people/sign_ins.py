"""Plays complete sign-ins with an identity provider, as the command line does them."""

import asyncio
import base64
import hashlib
import secrets
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp
from msgspec import structs

from tests.bench.figures import Aim
from tests.support.gateway import place
from tests.support.gateway_world import SETTINGS, opened
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, identity_provider
from tests.support.routers import free_port
from weft.client import Client
from weftd.gateway.settings import OidcSettings

SIGN_INS, QUICK_SIGN_INS, AT_ONCE = 900, 100, 16
PER_SECOND = 100.0


async def measure(home: Path, *, quick: bool, seed: int) -> dict[str, Aim]:
    count, port = QUICK_SIGN_INS if quick else SIGN_INS, free_port()
    url = f"http://127.0.0.1:{port}"
    async with identity_provider() as provider, place(home) as servers:
        oidc = OidcSettings(
            oidc_issuer=provider.url, oidc_client_id=CLIENT_ID, oidc_gateway_url=url, oidc_grants=("ml=vision:user",)
        )
        settings = structs.replace(SETTINGS, oidc=oidc)
        async with opened(servers, settings, oidc_secret=CLIENT_SECRET, port=port) as world:
            limit = asyncio.Semaphore(AT_ONCE)

            async def one() -> None:
                async with limit:
                    assert (await signed_in(world.http, url)).startswith("weft_")

            await one()  # keys and connections are there
            began = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(count):
                    tasks.create_task(one())
            rate = count / (time.perf_counter() - began)
    return {"sign-ins a second": Aim(value=round(rate, 1), aim=PER_SECOND, at_least=True)}


async def signed_in(http: aiohttp.ClientSession, url: str) -> str:
    """The token of a new session, by the steps of `weft login` and of its browser."""
    verifier = secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    query = f"port=1&challenge={challenge}&state={secrets.token_urlsafe(24)}"
    async with http.get(f"{url}/v1/oidc/login?{query}", allow_redirects=False) as answer:
        to, cookies = answer.headers["Location"], {name: one.value for name, one in answer.cookies.items()}
    async with http.get(to, allow_redirects=False) as answer:
        back = answer.headers["Location"]
    sent = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
    async with http.get(back, headers=sent, allow_redirects=False) as answer:
        assert answer.status == 302, await answer.text()
        code = parse_qs(urlsplit(answer.headers["Location"]).query)["code"][0]
    async with Client(url, "", retry_seconds=0) as nobody:
        return (await nobody.begin_session(code=code, verifier=verifier)).token
