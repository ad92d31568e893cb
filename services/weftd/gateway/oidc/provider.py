"""Requests to the identity provider. Only claims signed by its keys count, and each request has a time limit. People
who are signed in stay signed in while the provider does not answer."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast
from urllib.parse import urlencode

import aiohttp
import msgspec
from msgspec import Struct

from weftd.gateway.settings import OidcSettings, is_safe
from weftd.gateway.thinking.oidc import Claimed, Flow, FlowError, challenge_of, claimed

T = TypeVar("T")

SECONDS_MAX = 5.0  # of one request
ANSWER_BYTES_MAX = 256 << 10
AT_ONCE = 32
KEPT_SECONDS = 3600.0  # the provider's description and keys
AGAIN_SECONDS = 10.0  # between two reads of the keys for tokens with an unknown key
LEEWAY_SECONDS = 60
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
"""Signatures by a key pair alone: `none` and those of a shared secret prove nothing here."""
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


class ProviderError(Exception):
    """The provider's answer is missing or not valid; the text says why, for the person and the log."""


class PendingError(Exception):
    """The person has not confirmed the code of the device yet."""


class Described(Struct, frozen=True):
    """The description of a provider, at `.well-known/openid-configuration`."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    device_authorization_endpoint: str = ""


class Device(Struct, frozen=True):
    """An answer of the device flow (RFC 8628)."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float
    interval: float = 5.0
    verification_uri_complete: str = ""


class Provider:
    def __init__(
        self, settings: OidcSettings, secret: str, *, now: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._settings, self._secret, self._now, self._clock = settings, secret, now, clock
        self._described: tuple[float, Described] | None = None
        self._keys: tuple[float, Any] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._reading = asyncio.Lock()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def authorization_url(self, flow: Flow, redirect_uri: str) -> str:
        """Where the browser signs in. Raises ProviderError."""
        query = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self._settings.oidc_scopes),
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": challenge_of(flow.verifier),
            "code_challenge_method": "S256",
        }
        endpoint = (await self._description()).authorization_endpoint
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    async def claims(self, code: str, flow: Flow, redirect_uri: str) -> Claimed:
        """Exchange the provider's code, and verify the ID token that it stands for. Raises ProviderError, FlowError."""
        asked = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
        status, answer = await self._ask_token({**asked, "code_verifier": flow.verifier})
        if status != 200:
            raise FlowError(f"the provider does not accept the code of this sign-in ({_error(answer)}): begin again")
        return await self._verified(answer, nonce=flow.nonce)

    async def device(self) -> Device:
        """Begin a sign-in for a machine without a browser. Raises ProviderError."""
        endpoint = (await self._description()).device_authorization_endpoint
        if not endpoint:
            raise ProviderError("the identity provider has no device flow: sign in where there is a browser")
        asked = {"client_id": self._settings.oidc_client_id, "scope": " ".join(self._settings.oidc_scopes)}
        status, answer = await self._ask("POST", endpoint, asked)
        if status != 200:
            raise ProviderError(f"the identity provider refuses the device flow ({_error(answer)})")
        return _as(answer, Device)

    async def claims_of_device(self, device_code: str) -> Claimed:
        """Raises PendingError until the person has confirmed; ProviderError, FlowError."""
        status, answer = await self._ask_token({"grant_type": DEVICE_GRANT, "device_code": device_code})
        if status != 200:
            why = _error(answer)
            if why in ("authorization_pending", "slow_down"):
                raise PendingError
            raise FlowError(f"the provider does not accept the code of this device ({why}): begin again")
        return await self._verified(answer, nonce=None)

    async def _verified(self, answer: bytes, *, nonce: str | None) -> Claimed:
        token = _as(answer, dict[str, Any]).get("id_token")
        if not isinstance(token, str):
            raise ProviderError("the identity provider answered without an ID token")
        claims = await self._signed(token)
        settings = self._settings
        problem = mistake(
            claims, issuer=settings.oidc_issuer, client_id=settings.oidc_client_id, nonce=nonce, now=self._now()
        )
        if problem:
            raise FlowError(f"the provider's ID token is not valid: {problem}")
        return claimed(claims, name_claim=settings.oidc_name_claim, groups_claim=settings.oidc_groups_claim)

    async def _signed(self, token: str) -> dict[str, Any]:
        """The claims of a token that one of the provider's keys has signed. Raises FlowError, ProviderError."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        problem = ""
        for again in (False, True):
            keys = await self._key_set(again=again)
            try:
                return dict(jwt.decode(token, keys, algorithms=list(ALGORITHMS)).claims)
            except (JoseError, ValueError, TypeError, KeyError) as error:
                problem = type(error).__name__
        raise FlowError(f"the provider's ID token is not signed by it ({problem})")

    async def _key_set(self, *, again: bool) -> Any:
        """The provider's keys. With `again`, read them now, as they may have changed, unless they were read a moment
        ago."""
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        async with self._reading:
            fresh = AGAIN_SECONDS if again else KEPT_SECONDS
            if self._keys is not None and self._clock() - self._keys[0] < fresh:
                return self._keys[1]
            status, answer = await self._ask("GET", (await self._description()).jwks_uri)
            try:
                if status != 200:
                    raise ProviderError(f"the identity provider answers {status} for its keys")
                keys = KeySet.import_key_set(cast(Any, _as(answer, dict[str, Any])))
            except (JoseError, ValueError, TypeError, KeyError) as error:
                raise ProviderError("the identity provider has no keys") from error
            self._keys = (self._clock(), keys)
            return keys

    async def _description(self) -> Described:
        if self._described is not None and self._clock() - self._described[0] < KEPT_SECONDS:
            return self._described[1]
        issuer = self._settings.oidc_issuer
        status, answer = await self._ask("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if status != 200:
            raise ProviderError(f"the identity provider answers {status} for its description")
        described = _as(answer, Described)
        if described.issuer != issuer:
            raise ProviderError(f"the identity provider calls itself {described.issuer[:200]}, not {issuer}")
        ends = (described.authorization_endpoint, described.token_endpoint, described.jwks_uri)
        if wrong := next((end for end in ends if not is_safe(end)), ""):
            raise ProviderError(f"the identity provider names {wrong[:200]}, which is not https")
        self._described = (self._clock(), described)
        return described

    async def _ask_token(self, form: Mapping[str, str]) -> tuple[int, bytes]:
        known = {"client_id": self._settings.oidc_client_id}
        secret = {"client_secret": self._secret} if self._secret else {}
        return await self._ask("POST", (await self._description()).token_endpoint, {**form, **known, **secret})

    async def _ask(self, method: str, url: str, form: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Status and body of an answer. Redirects and cookies are ignored. Raises ProviderError."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=SECONDS_MAX)
            self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        if self._at_once.locked():
            raise ProviderError("too many people sign in at once: try again in a moment")
        tls = self._tls() if url.startswith("https:") else True
        headers = {"Accept": "application/json"}
        try:
            async with (
                self._at_once,
                self._session.request(
                    method, url, data=form, headers=headers, allow_redirects=False, ssl=tls
                ) as response,
            ):
                body = await response.content.read(ANSWER_BYTES_MAX + 1)
                while len(body) <= ANSWER_BYTES_MAX and (more := await response.content.read(ANSWER_BYTES_MAX)):
                    body += more
                if len(body) > ANSWER_BYTES_MAX:
                    raise ProviderError("the identity provider's answer is too large")
                return response.status, body
        except TimeoutError:
            raise ProviderError(f"the identity provider did not answer within {SECONDS_MAX:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ProviderError("the identity provider does not answer") from error

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._settings.oidc_ca_file or None)


def mistake(claims: Mapping[str, Any], *, issuer: str, client_id: str, nonce: str | None, now: float) -> str:
    """The mistake in the claims of an ID token (OpenID Connect Core 3.1.3.7); empty: nothing."""
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience
    expires, issued = claims.get("exp"), claims.get("iat")
    if claims.get("iss") != issuer:
        return "it is of another issuer"
    if not isinstance(audiences, list) or client_id not in audiences:
        return "it is for another client"
    if (len(audiences) > 1 or "azp" in claims) and claims.get("azp") != client_id:
        return "it was given to another client"
    if isinstance(expires, bool) or not isinstance(expires, int | float) or expires <= now - LEEWAY_SECONDS:
        return "it has expired"
    if isinstance(issued, bool) or not isinstance(issued, int | float) or issued > now + LEEWAY_SECONDS:
        return "its issue time is missing or in the future"
    if nonce is not None and claims.get("nonce") != nonce:
        return "it is of another sign-in"
    return ""


def _as(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProviderError("the identity provider's answer is not valid") from None


def _error(answer: bytes) -> str:
    """The provider's error code of a refusal."""
    try:
        word = msgspec.json.decode(answer, type=dict[str, Any]).get("error", "")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        word = ""
    return word[:60] if isinstance(word, str) and word.isascii() and word.isprintable() and word else "no reason given"
