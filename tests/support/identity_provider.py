"""An identity provider that a test can have forge, hang and lie. It signs everybody in at once, as `claims` say."""

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID, CLIENT_SECRET = "weft", "a-secret-of-the-client"


class IdentityProvider:
    def __init__(self) -> None:
        self.claims: dict[str, Any] = {"sub": "ada", "email": "ada@example.org", "groups": ["ml"]}
        self.changes: dict[str, Any] = {}  # forged claims; None takes one away
        self.key = RSAKey.generate_key(2048, {"kid": "first"})
        self.signs_with: Any = self.key
        self.alg = "RS256"
        self.hangs = False
        self.answer: web.Response | None = None  # the answer of the token endpoint, in place of its own
        self.confirmed = False  # the device
        self.asked: list[str] = []
        self.codes: dict[str, dict[str, str]] = {}
        self.url = ""

    async def described(self, request: web.Request) -> web.Response:
        names = {name: f"{self.url}/{name}" for name in ("authorize", "token", "jwks", "device")}
        described = {
            "issuer": self.url,
            "authorization_endpoint": names["authorize"],
            "token_endpoint": names["token"],
            "jwks_uri": names["jwks"],
            "device_authorization_endpoint": names["device"],
        }
        return web.json_response(described)

    async def authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT_ID)
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        back = urlencode({"code": code, "state": asked["state"]})
        raise web.HTTPFound(f"{asked['redirect_uri']}?{back}")

    async def token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.asked.append(form["grant_type"])
        if self.hangs:
            await asyncio.sleep(3600)
        if self.answer is not None:
            return self.answer
        if form.get("client_secret") != CLIENT_SECRET:
            return web.json_response({"error": "invalid_client"}, status=401)
        if "device_code" in form:
            if not self.confirmed:
                return web.json_response({"error": "authorization_pending"}, status=400)
            return web.json_response({"id_token": self.id_token({})})
        begun = self.codes.pop(form["code"], None)  # once
        if begun is None or begun["redirect_uri"] != form["redirect_uri"]:
            return web.json_response({"error": "invalid_grant"}, status=400)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if _coded(digest) != begun["code_challenge"]:
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response({"id_token": self.id_token({"nonce": begun["nonce"]})})

    def id_token(self, more: dict[str, Any]) -> str:
        now = int(time.time())
        usual = {"iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 300, **more, **self.claims}
        claims = {name: value for name, value in {**usual, **self.changes}.items() if value is not None}
        if self.alg in ("none", "HS256"):  # the library makes no such token
            body = ".".join(_coded(json.dumps(part).encode()) for part in ({"alg": self.alg, "kid": "first"}, claims))
            secret = self.key.as_pem(private=False)  # the confusion of algorithms: the public key as a shared secret
            signed = hmac.digest(secret, body.encode(), "sha256") if self.alg == "HS256" else b""
            return f"{body}.{_coded(signed)}"
        header = {"alg": self.alg, "kid": self.signs_with.kid or "first"}
        return jwt.encode(header, claims, self.signs_with, algorithms=[self.alg])

    async def jwks(self, request: web.Request) -> web.Response:
        self.asked.append("jwks")
        return web.json_response({"keys": [self.key.as_dict(private=False)]})

    async def device(self, request: web.Request) -> web.Response:
        made = {
            "device_code": "d-1",
            "user_code": "ABCD",
            "verification_uri": f"{self.url}/go",
            "expires_in": 60,
            "interval": 1,
        }
        return web.json_response(made)


def _coded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


@asynccontextmanager
async def identity_provider() -> AsyncIterator[IdentityProvider]:
    made = IdentityProvider()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", made.described)
    app.router.add_get("/authorize", made.authorize)
    app.router.add_post("/token", made.token)
    app.router.add_get("/jwks", made.jwks)
    app.router.add_post("/device", made.device)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()
