"""Pages in browsers: what another origin's page may do with a person's cookie, and which cookies a replica may set."""

import asyncio

import aiohttp
import aiohttp.web
import pytest

from tests.support.gateway import until
from tests.support.routers import Town, error_of, one_time_code

OTHER = "http://evil.beta.localhost:8480"


async def sets_cookies(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
    """Cookies of the router, of the domain, and one of its own; also where it switches protocols."""
    cookies = ("weft_token=mine; Path=/s/", "=weft_token=mine", "a=1; Domain=localhost; Path=/", "b=2; Path=/x")
    if request.headers.get("Upgrade"):
        assert request.transport is not None
        lines = "".join(f"Set-Cookie: {cookie}\r\n" for cookie in cookies)
        head = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{lines}\r\n"
        request.transport.write(head.encode())
        request.transport.close()
        return aiohttp.web.Response()
    answer = aiohttp.web.json_response(dict(request.headers))
    for cookie in cookies:
        answer.headers.add("Set-Cookie", cookie)
    return answer


async def test_a_page_of_another_origin_gets_nothing_with_a_persons_cookie(
    there: Town, http: aiohttp.ClientSession
) -> None:
    job = await there.service(public=False)
    replica = await there.replica(0)
    await there.tell(replica.endpoint(job))
    url = f"{there.url}/s/{job.id}/x"
    cookie = {"Cookie": f"weft_token={there.tokens['alice']}"}
    bearer = {"Authorization": f"Bearer {there.tokens['alice']}"}
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    own = f"http://127.0.0.1:{there.port}"
    for method, headers, status in (
        ("POST", cookie, 200),
        ("POST", cookie | {"Origin": own}, 200),
        ("POST", cookie | {"Origin": OTHER}, 403),
        ("POST", cookie | {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", cookie | {"Origin": OTHER} | upgrade, 403),
        (
            "GET",
            cookie | {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
            403,
        ),
        ("GET", cookie | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ("POST", bearer | {"Origin": OTHER}, 200),
    ):
        async with http.request(method, url, headers=headers) as answer:
            assert (answer.status, headers) == (status, headers)
            if status == 403:
                assert "another origin" in error_of(await answer.read())
    planted = f"{url}?weft_code={await one_time_code(there, 'bob', 'j-other')}"
    async with http.get(planted, allow_redirects=False) as answer:
        assert (answer.status, answer.headers.get("Set-Cookie")) == (401, None), "it opens nothing here"
    image = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    mine = f"{url}?weft_code={await one_time_code(there, 'alice', job.id)}"
    async with http.get(mine, headers=image, allow_redirects=False) as answer:
        assert (answer.status, answer.headers.get("Set-Cookie")) == (403, None)
    both = {"Cookie": f"weft_token={there.tokens['bob']}; weft_token=weft_x; weft_token={there.tokens['alice']}; a=b"}
    async with http.get(url, headers=both) as answer:
        assert (answer.status, (await answer.json())["headers"]["Cookie"]) == (200, "; a=b")


async def test_a_token_comes_as_jupyters_clients_send_it_and_the_replica_is_told_how(
    there: Town, http: aiohttp.ClientSession
) -> None:
    job, public = await there.service(public=False), await there.service("public")
    replica = await there.replica(0)
    await there.tell(replica.endpoint(job), replica.endpoint(public))
    url, token = f"{there.url}/s/{job.id}/api", there.tokens["alice"]
    for address, headers, by, kept in (
        (url, {"Authorization": f"token {token}", "X-Weft-Auth": "cookie"}, "token", None),
        (f"{url}?a=1&token={token}&b=%2F", {}, "token", None),
        (
            url,
            {"Cookie": f"weft_token={token}", "Authorization": "token own", "X-Weft-Auth": "token"},
            "cookie",
            "token own",
        ),
        (f"{there.url}/s/{public.id}/api", {"X-Weft-Auth": "token"}, "public", None),
    ):
        async with http.post(address, headers=headers) as answer:
            told = await answer.json()
        assert (told["headers"]["X-Weft-Auth"], told["headers"].get("Authorization")) == (by, kept)
        assert token not in str(told)
        assert told["path"] == ("/api?a=1&b=%2F" if "?" in address else "/api")
    async with http.get(f"{url}?token=own", headers={"Authorization": f"Bearer {token}"}) as answer:
        assert (await answer.json())["path"] == "/api?token=own", "a token of the replica's own"
    page = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    async with http.get(f"{url}?token={token}", headers=page, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (302, f"/s/{job.id}/api")
        assert answer.headers["Set-Cookie"].startswith("weft_token=")


APP = "https://app.example.org"
ASKS = {"Origin": APP, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


async def answers_itself(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
    """As a server whose own CORS allows everybody, with cookies."""
    headers = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Credentials": "true", "Vary": "Accept"}
    return aiohttp.web.Response(text=request.method, headers=headers)


async def test_a_page_of_an_allowed_origin_calls_a_service_with_a_token_and_its_preflight_starts_nothing(
    there: Town, http: aiohttp.ClientSession
) -> None:
    job = await there.service(public=False, timeout="500ms", allow_origins=[APP])
    url = f"{there.url}/s/{job.id}/v1/chat"
    async with http.options(url, headers=ASKS) as answer:
        assert answer.status == 204
        assert answer.headers["Access-Control-Allow-Origin"] == APP
        assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
        assert answer.headers["Access-Control-Allow-Methods"] == "*"
        assert "Access-Control-Allow-Credentials" not in answer.headers
    async with http.options(url, headers={**ASKS, "Origin": OTHER}) as answer:
        assert (answer.status, answer.headers.get("Access-Control-Allow-Origin")) == (401, None)
    for headers, status in (({}, 401), ({"Authorization": f"Bearer {there.tokens['bob']}"}, 404)):
        async with http.post(url, headers={"Origin": APP, **headers}) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (status, APP)
    token = {"Authorization": f"Bearer {there.tokens['alice']}", "Origin": APP}
    async with http.post(url, headers=token) as answer:
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (503, APP)
        assert answer.headers["Access-Control-Expose-Headers"] == "*"
    await until(lambda: there.last(job).arrived)
    assert there.last(job).arrived == 1, "no preflight is a request of the service"
    replica = await there.replica(0, answers_itself)
    await there.tell(replica.endpoint(job))
    async with http.post(url, headers=token) as answer:
        assert (answer.status, answer.headers.getall("Access-Control-Allow-Origin")) == (200, [APP])
        assert "Access-Control-Allow-Credentials" not in answer.headers
        assert {"Origin", "Accept"} <= {one.strip() for one in ",".join(answer.headers.getall("Vary")).split(",")}
    async with http.post(url, headers={"Cookie": f"weft_token={there.tokens['alice']}", "Origin": APP}) as answer:
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (403, APP), "never with a cookie"
    await replica.stop()
    async with http.post(url, headers=token) as answer:
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (503, APP), "after a try"


async def test_a_service_that_names_no_origin_answers_pages_as_its_replica_does(
    there: Town, http: aiohttp.ClientSession
) -> None:
    public, own = await there.service(), await there.service("own", public=False)
    replica = await there.replica(0, answers_itself)
    await there.tell(replica.endpoint(public), replica.endpoint(own))
    async with http.options(f"{there.url}/s/{public.id}/", headers=ASKS) as answer:
        assert (answer.status, await answer.text()) == (200, "OPTIONS")
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
    async with http.options(f"{there.url}/s/{own.id}/", headers=ASKS) as answer:
        assert (answer.status, answer.headers.get("Access-Control-Allow-Origin")) == (401, None)


async def test_a_replica_sets_no_cookie_of_the_router_and_none_for_other_services(
    there: Town, http: aiohttp.ClientSession
) -> None:
    job = await there.service()
    replica = await there.replica(0, sets_cookies)
    await there.tell(replica.endpoint(job))
    async with http.get(f"{there.url}/s/{job.id}/") as answer:
        assert [one for one in answer.headers.getall("Set-Cookie") if one] == ["a=1; Path=/", "b=2; Path=/x"]
    reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
    writer.write(f"GET /s/{job.id}/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".encode())
    async with asyncio.timeout(60):
        head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 101")
    assert b"weft_token" not in head
    assert b"omain" not in head
    assert b"b=2; Path=/x" in head


@pytest.mark.parametrize("cookie", ["a=b,weft_token={}", "a=b;\xa0weft_token={}", "a=b;\x85weft_token={}"])
async def test_a_token_in_an_odd_cookie_never_reaches_a_replica(there: Town, cookie: str) -> None:
    job = await there.service(public=False)
    replica = await there.replica(0)
    await there.tell(replica.endpoint(job))
    reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
    header = cookie.format(there.tokens["alice"])
    writer.write(f"GET /s/{job.id}/ HTTP/1.1\r\nHost: a\r\nCookie: {header}\r\n\r\n".encode("latin-1"))
    async with asyncio.timeout(60):
        head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert head.split()[1] in (b"200", b"401")
    assert not [one for one in replica.asked if "weft_token" in one.headers.get("Cookie", "")]
