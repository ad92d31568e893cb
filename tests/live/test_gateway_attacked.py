"""Requests made to do harm, or by mistake: each is one short error that names its field, and changes nothing."""

import json
from typing import Any

import pytest

from tests.support.gateway_world import World, error_of
from weftd.gateway.notifications.posting import Poster, PostError
from weftd.gateway.thinking.notifications.addresses import networks_of

DIGEST = "0" * 64
HUGE = b"1" + b"0" * 400
DEEP = b'{"a":' * 50_000

QUOTAS: list[tuple[bytes, str]] = [
    (b'{"guaranteed_models": {"a\\u0000b": 1}}', "guaranteed_models"),
    (b'{"limit_models": {"a\\r\\nb": 1}}', "limit_models"),
    (b'{"guaranteed_models": {"\\u001b[2J": 1}}', "guaranteed_models"),
    (b'{"guaranteed_models": {"": 1}}', "guaranteed_models"),
    (b'{"guaranteed_models": {"%s": 1}}' % (b"x" * 101), "guaranteed_models"),
    (b'{"guaranteed_models": {%s}}' % b", ".join(b'"m%d": 1' % number for number in range(33)), "guaranteed_models"),
    (b'{"guaranteed_models": {"a": -1}}', "guaranteed_models.a"),
    (b'{"guaranteed_models": %s' % DEEP, "guaranteed_models"),
    (b'{"guaranteed_models": {"\\ud800": 1}}', ""),
    (b'{"guaranteed": NaN}', ""),
    (b'{"guaranteed": 1e400}', "guaranteed"),
    (b'{"guaranteed": %s}' % HUGE, "guaranteed"),
    (b'{"guaranteed": 1e-7}', "guaranteed"),
    (b'{"limit": -1}', "limit"),
    (b'{"limit": 1000001}', "limit"),
    (b'{"limit": true}', "limit"),
    (b'{"limit": 1, "guaranteed": 2}', "limit"),
    (b'{"weight": %s}' % HUGE, "weight"),
    (b'{"weight": 1.5}', "weight"),
    (b'{"group": "team"}', "group"),
    (b'{"group": "a\\u0000"}', "group"),
    (b'{"pool": "a\\n"}', "pool"),
    (b'{"pool": "../a"}', "pool"),
    (b'{"name": "other"}', "name"),
    (DEEP, "a"),
    (b"[" * 50_000, ""),
    (b"\xff\xfe", ""),
    (b"", ""),
]


def is_plain(body: bytes) -> bool:
    """Whether a person can read the error: it is short, and quotes no regular expression."""
    reason = error_of(body)[1]
    return bool(reason) and len(body) < 1500 and "regex" not in reason


@pytest.mark.parametrize(("body", "field"), QUOTAS, ids=range(len(QUOTAS)))
async def test_a_quota_that_makes_no_sense_is_refused_by_its_field(world: World, body: bytes, field: str) -> None:
    before = (await world.admin.quotas()).quotas
    status, answer, _ = await world.ask("PUT", "/v1/quotas/team", token="admin", data=body)
    assert (status, error_of(answer)[0], is_plain(answer)) == (400, field, True), answer
    assert (await world.admin.quotas()).quotas == before


DOUBLED: list[tuple[str, str, bytes, str]] = [
    ("PUT", "/v1/quotas/team", b'{"limit": 1, "limit": 9}', "limit"),
    ("PUT", "/v1/quotas/team", b'{"limit": 1, "l\\u0069mit": 9}', "limit"),
    ("PUT", "/v1/quotas/team", b'{"limit_models": {"a": 1, "b": 1, "a": 9}}', "limit_models.a"),
    ("PUT", "/v1/secrets/odd", b'{"value": "a", "value": "b"}', "value"),
    ("PUT", "/v1/secrets/odd", b'{"value": "a",%s "value": "b"}' % (b" " * (100 << 10)), "value"),
    ("PATCH", "/v1/tenants/alice", b'{"priority_max": 1, "priority_max": 9}', "priority_max"),
    ("POST", "/v1/tokens", b'{"label": "a", "tenant": "alice", "tenant": "bob"}', "tenant"),
    ("POST", "/v1/webhooks", b'{"url": "https://a.example/", "url": "https://b.example/"}', "url"),
    ("POST", "/v1/what-if", b'{"order": "fifo", "order": "srtf"}', "order"),
    ("POST", "/v1/what-if", b'{"submit": [{"command": ["a"]}, {"env": {"A": "1", "A": "2"}}]}', "submit[1].env.A"),
    ("POST", "/v1/arrays/swept/cancel", b'{"indices": "0", "indices": "0-9"}', "indices"),
    ("POST", "/v1/jobs", b'{"name": "a", "command": ["x"], "env": {"A": "1", "A": "2"}}', "env.A"),
]


@pytest.mark.parametrize(("method", "path", "body", "field"), DOUBLED, ids=range(len(DOUBLED)))
async def test_a_name_that_a_body_gives_twice_is_refused(
    world: World, method: str, path: str, body: bytes, field: str
) -> None:
    before = await world.stored()
    status, answer, _ = await world.ask(method, path, token="admin", data=body)
    assert (status, error_of(answer)) == (400, (field, "is given twice")), answer
    assert await world.stored() == before


async def test_a_long_path_to_a_name_that_is_given_twice_is_cut(world: World) -> None:
    body = b'{"submit": [%s{"a": 1, "a": 2}%s]}' % (b'{"%s":' % (b"x" * 2000) * 400, b"}" * 400)
    status, answer, _ = await world.ask("POST", "/v1/what-if", data=body)
    assert (status, error_of(answer)[1], is_plain(answer)) == (400, "is given twice", True), answer[:2000]


@pytest.mark.parametrize("body", [b'{"submit": [%s' % DEEP, b'{"submit": [{"a": %s' % (b"[" * 50_000)])
async def test_a_what_if_that_is_nested_too_deeply_is_refused(world: World, body: bytes) -> None:
    status, answer, _ = await world.ask("POST", "/v1/what-if", data=body)
    assert (status, error_of(answer)) == (400, ("", "nested too deeply")), answer


async def test_a_model_of_a_quota_may_have_any_name_that_a_gpu_has(world: World) -> None:
    models = {"NVIDIA H100 80GB HBM3": 1.0, "__proto__": 2.0, "é": 3.0, "e\u0301": 4.0, "h100": 5.0, "H100": 6.0}
    body = json.dumps({"guaranteed_models": models}).encode()
    status, answer, _ = await world.ask("PUT", "/v1/quotas/team", token="admin", data=body)
    assert (status, json.loads(answer)["guaranteed_models"]) == (200, models)


async def test_groups_come_to_no_circle_by_steps(world: World) -> None:
    for name, group in (("a", ""), ("b", "a"), ("c", "b")):
        body = json.dumps({"is_group": True, "group": group}).encode()
        assert (await world.ask("PUT", f"/v1/quotas/{name}", token="admin", data=body))[0] == 200
    for group in ("a", "b", "c"):
        body = json.dumps({"is_group": True, "group": group}).encode()
        status, answer, _ = await world.ask("PUT", "/v1/quotas/a", token="admin", data=body)
        assert (status, error_of(answer)[0]) == (400, "group")
    status, answer, _ = await world.ask("DELETE", "/v1/quotas/b", token="admin")
    assert (status, error_of(answer)[0]) == (409, "name")
    for method, path in (("PUT", "/v1/quotas/alice"), ("DELETE", "/v1/quotas/a")):
        assert (await world.ask(method, path, data=b"{}"))[0] == 403


@pytest.mark.parametrize("name", ["A", "a%0A", "%00", "a%00b", "%C3%A9", "a%CC%81", "a_b", "a%2Fb", "-", "x" * 64])
async def test_no_odd_name_of_a_secret_a_quota_or_files_is_taken(world: World, name: str) -> None:
    await world.alice.set_secret("a", "of alice")
    for method, path, field in (
        ("PUT", f"/v1/secrets/{name}", "name"),
        ("DELETE", f"/v1/secrets/{name}", "name"),
        ("PUT", f"/v1/quotas/{name}", "name"),
        ("DELETE", f"/v1/quotas/{name}", "name"),
        ("PUT", f"/v1/contexts/{name}", "digest"),
        ("GET", f"/v1/contexts/{name}", "digest"),
        ("PATCH", f"/v1/tenants/{name}", "tenant"),
    ):
        token = "admin" if field == "tenant" or "quotas" in path else "alice"
        status, answer, _ = await world.ask(method, path, token=token, data=b'{"value": "x"}')
        assert (status, error_of(answer)[0], is_plain(answer)) == (400, field, True), (path, answer)
    assert [one.name for one in (await world.alice.secrets()).secrets] == ["a"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"value": "\\ud800x"}', ""),
        (b'{"value": ["a"]}', "value"),
        (b'{"value": null}', "value"),
        (b'{"value": "a", "name": "b"}', "name"),
        (b'{"value": %s' % DEEP, "value"),
        (b"\xff", ""),
        (b"{}", "value"),
    ],
)
async def test_a_value_of_a_secret_is_one_text_and_no_refusal_repeats_it(world: World, body: bytes, field: str) -> None:
    status, answer, _ = await world.ask("PUT", "/v1/secrets/odd", data=body)
    assert (status, error_of(answer)[0], is_plain(answer)) == (400, field, True), answer
    assert (await world.alice.secrets()).secrets == ()


@pytest.mark.parametrize(
    "value", ["a\r\nb", "\u202e", "=cmd|'/c calc'!A1", "\x1b[2J", "${HOME} {x}", "'; DROP TABLE secrets"]
)
async def test_a_value_of_a_secret_may_be_any_text(world: World, value: str) -> None:
    await world.alice.set_secret("odd", value)
    rows = await world.place.stores.owner.fetch("SELECT value FROM secrets WHERE tenant = 'alice'")
    assert [row["value"] for row in rows] == [value]
    assert (await world.bob.secrets()).secrets == ()


USAGE: list[tuple[str, str]] = [
    ("until=nan&by=job", "until"),
    ("until=inf&by=job", "until"),
    ("until=-1&by=job", "until"),
    ("until=1e400&by=job", "until"),
    ("until=253402300800&by=job", "until"),
    ("until=0", "until"),
    ("label=team", "label"),
    ("by=label", "label"),
    ("by=label&label=", "label"),
    ("by=label&label=a%00", "label"),
    ("by=label&label=a%0A", "label"),
    ("by=label&label=%C3%A9", "label"),
    ("by=day&label=team", "label"),
    ("by=day;drop", "by"),
    ("by=day&by=hour", "by"),
    ("by=day&limit=0", "limit"),
    ("by=day&limit=1e9", "limit"),
    ("by=day&limit=" + "9" * 4000, "limit"),
    ("seconds=59", "seconds"),
    ("seconds=2678401", "seconds"),
    ("seconds=0x3c", "seconds"),
    ("seconds=%D9%A6%D9%A0", "seconds"),
    ("seconds=-60", "seconds"),
    ("tenant=..", "tenant"),
    ("tenant=alice%00", "tenant"),
    ("bogus=1", "bogus"),
]


@pytest.mark.parametrize(("query", "field"), USAGE, ids=range(len(USAGE)))
async def test_a_time_or_a_row_that_makes_no_sense_is_refused(world: World, query: str, field: str) -> None:
    for headers in ({}, {"Accept": "text/csv"}):
        status, answer, _ = await world.ask("GET", f"/v1/usage?{query}", headers=headers)
        assert (status, error_of(answer)[0]) == (400, field), answer
        assert len(answer) < 1500


@pytest.mark.parametrize("path", ["/v1/quotas?bogus=1", "/v1/quotas?pool=a%0A", "/v1/quotas?pool=A&pool=b"])
async def test_a_query_of_quotas_that_makes_no_sense_is_refused(world: World, path: str) -> None:
    status, answer, _ = await world.ask("GET", path)
    assert (status, error_of(answer)[0]) == (400, path.partition("?")[2].partition("=")[0])


@pytest.mark.parametrize(
    ("volume", "status", "field"),
    [
        ({"name": "a\n"}, 400, "volumes[0].name"),
        ({"name": "A"}, 400, "volumes[0].name"),
        ({"name": "../a"}, 400, "volumes[0].name"),
        ({"name": "a", "target": "/a:/etc:rw"}, 422, "volumes[0]"),
        ({"name": "a", "source": "/srv/data"}, 400, "volumes[0]"),
        ({"source": "/srv/data/../..", "target": "/x"}, 400, "volumes[0]"),
        ({"source": "/srv/data\n", "target": "/x"}, 422, "volumes[0].source"),
        ({"source": "/srv/data\0/x", "target": "/x"}, 400, "volumes[0].source"),
        ({"source": "/srv/database", "target": "/x"}, 422, "volumes[0].source"),
        ({"source": "/srv/data", "target": "//proc/./self"}, 400, "volumes[0]"),
        ({"source": "/srv/data", "target": "/" + "x" * 4096}, 400, "volumes[0].target"),
        ({"source": "/srv/data", "target": 7}, 400, "volumes[0].target"),
    ],
)
async def test_a_volume_that_leads_elsewhere_is_refused(
    world: World, volume: dict[str, Any], status: int, field: str
) -> None:
    before = await world.stored()
    body = json.dumps({"name": "v", "image": "i", "volumes": [volume]}).encode()
    found, answer, _ = await world.ask("POST", "/v1/jobs", data=body)
    assert (found, error_of(answer)[0]) == (status, field), answer
    assert len(answer) < 1500 + 4096
    assert await world.stored() == before


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"url": "https://a..b/"}, "url"),
        ({"url": "https://.example.org/"}, "url"),
        ({"url": "https://" + "a" * 64 + ".example.org/"}, "url"),
        ({"url": "https://example.org:+80/"}, "url"),
        ({"url": "https://example.org:8_0/"}, "url"),
        ({"url": "https://example.org\\@h/"}, "url"),
        ({"url": "https://%65xample.org/"}, "url"),
        ({"url": "http://[fe80::1%25lo]/"}, "url"),
        ({"url": "https://ex\u00e4mple.org/"}, "url"),
        ({"url": "https://example.org/\r\nX: y"}, "url"),
        ({"url": "https://example.org/" + "x" * 2048}, "url"),
        ({"url": "https://example.org/", "events": ["x\n"]}, "events[0]"),
        ({"url": "https://example.org/", "events": ["begin"] * 33}, "events"),
    ],
)
async def test_a_webhook_that_can_reach_nothing_is_refused_at_once(
    world: World, body: dict[str, Any], field: str
) -> None:
    status, answer, _ = await world.ask("POST", "/v1/webhooks", data=json.dumps(body).encode())
    assert (status, error_of(answer)[0], is_plain(answer)) == (400, field, True), answer
    assert (await world.alice.webhooks()).webhooks == ()


ODDLY_SPELLED = [
    "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "127.0.0.01", "0X7F000001", "127.0x1", "127.0.0.1.", "10.1", "0",
    "0x", "1.2.3.4.5", "example.1", "169.254.43518", "user.0x7f",
]  # fmt: skip


@pytest.mark.parametrize("host", ODDLY_SPELLED)
async def test_a_webhook_to_an_address_in_an_odd_spelling_is_refused_as_it_is_made_and_as_it_is_posted(
    world: World, host: str
) -> None:
    url = f"http://{host}:8080/hook"
    status, answer, _ = await world.ask("POST", "/v1/webhooks", data=json.dumps({"url": url}).encode())
    assert (status, error_of(answer)[0], "ends in a number" in error_of(answer)[1]) == (400, "url", True), answer
    assert (await world.alice.webhooks()).webhooks == ()

    def find(host: str, port: int) -> list[str]:
        raise AssertionError(f"{host} is looked up")

    with pytest.raises(PostError, match="ends in a number"):
        await Poster(networks_of(["127.0.0.0/8"]), find=find).post(url, b"", {})


@pytest.mark.parametrize("host", ["127.0.0.1", "1.2.3.4", "1.example", "0x7f.example", "a1.example2", "[2600::1]"])
async def test_a_webhook_to_an_address_or_a_name_with_numbers_is_made(world: World, host: str) -> None:
    status, answer, _ = await world.ask("POST", "/v1/webhooks", data=json.dumps({"url": f"http://{host}/"}).encode())
    assert status == 201, answer


@pytest.mark.parametrize(
    "indices", ["", "0-9%1", "9-0", "1,1", "," * 500, "0-999999", "0-9" * 500, "\u0660", "-1", "%3"]
)
async def test_indices_that_name_no_elements_cancel_none(world: World, indices: str) -> None:
    array = json.dumps({"name": "swept", "command": ["x"], "array": "0-2"}).encode()
    assert (await world.ask("POST", "/v1/jobs", data=array))[0] == 201
    before = await world.stored()
    for verb in ("cancel", "requeue"):
        path, body = f"/v1/arrays/swept/{verb}", json.dumps({"indices": indices}).encode()
        status, answer, _ = await world.ask("POST", path, data=body)
        assert (status, error_of(answer)[0], is_plain(answer)) == (400, "indices", True), answer
    assert await world.stored() == before


async def test_odd_values_of_a_sweep_are_read_back_as_they_were(world: World) -> None:
    values: list[Any] = [10**400, -(10**30), 1e308, 5e-324, -0.0, True, "1", "\u202e\x1b[2J", "{lr}", "'; DROP"]
    body = json.dumps({"name": "swept", "command": ["{lr}"], "sweep": {"lr": values}}).encode()
    assert (await world.ask("POST", "/v1/jobs", data=body))[0] == 201
    for index, value in enumerate(values):
        made = (await world.alice.job(f"swept_{index}")).spec
        assert made is not None
        assert made.command == (str(value).lower() if isinstance(value, bool) else str(value),)


async def test_files_that_are_not_those_of_their_digest_are_not_stored(world: World) -> None:
    for digest, body in ((DIGEST, b"x"), (DIGEST, b""), (DIGEST.upper()[:63] + "A", b"x")):
        status, _, _ = await world.ask("PUT", f"/v1/contexts/{digest}", data=body)
        assert status == 400
        assert (await world.ask("GET", f"/v1/contexts/{digest}"))[0] in (400, 404)
    job = json.dumps({"name": "a", "command": ["x"], "context": DIGEST}).encode()
    status, answer, _ = await world.ask("POST", "/v1/jobs", data=job)
    assert (status, error_of(answer)[0]) == (400, "context")


@pytest.mark.parametrize("query", ["term=xterm%0A", "session=a%0A", "session=a%00", "rows=1e4", "port=1&kind=shell"])
async def test_odd_parameters_of_a_session_are_refused(world: World, query: str) -> None:
    job = await world.running()
    status, answer, _ = await world.ask("GET", f"/v1/jobs/{job.id}/attach?{query}")
    assert (status, error_of(answer)[0]) == (400, query.partition("=")[0]), answer
