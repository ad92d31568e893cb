"""Answers that a reader has already, the links of lists, and events from now on: over a real gateway."""

import json

from tests.support.builders import spec
from tests.support.gateway_world import World, error_of


async def test_an_answer_that_is_the_same_is_not_sent_again(world: World) -> None:
    await world.alice.submit(spec())
    status, body, headers = await world.ask("GET", "/v1/jobs")
    tag = headers["ETag"]
    assert (status, headers["Cache-Control"], bool(body)) == (200, "no-cache", True)
    for named in (tag, f"W/{tag}", f'"other", {tag}'):
        status, body, again = await world.ask("GET", "/v1/jobs", headers={"If-None-Match": named})
        assert (status, body, again["ETag"]) == (304, b"", tag), named
    for named in ('"other"', "", "\u00e9" * 50, '"' * 500):
        status, _, _ = await world.ask("GET", "/v1/jobs", headers={"If-None-Match": named})
        assert status == 200, named
    status, body, _ = await world.ask("GET", "/v1/jobs", token="bob", headers={"If-None-Match": tag})
    assert (status, json.loads(body)["jobs"]) == (200, []), "another tenant's answer is another one"
    await world.alice.submit(spec())
    status, _, headers = await world.ask("GET", "/v1/jobs", headers={"If-None-Match": tag})
    assert (status, headers["ETag"] != tag) == (200, True)


async def test_what_changes_or_streams_or_fails_has_no_tag(world: World) -> None:
    job = await world.alice.submit(spec())
    asked = (("POST", f"/v1/jobs/{job.id}/cancel"), ("GET", "/v1/jobs/j-none"), ("GET", "/metrics"))
    for method, path in asked:
        _, _, headers = await world.ask(method, path)
        assert "ETag" not in headers, path


async def test_the_links_of_lists_lead_through_all_of_them(world: World) -> None:
    made = [(await world.alice.submit(spec(f"job-{number}"))).id for number in range(5)]
    seen: list[str] = []
    path, pages = "/v1/jobs?limit=2&name=job-*", 0
    while path:
        status, body, headers = await world.ask("GET", path)
        assert status == 200, body
        seen += [job["id"] for job in json.loads(body)["jobs"]]
        path, pages = next_of(headers.get("Link", "")), pages + 1
    assert (seen, pages) == (made[::-1], 3)

    told: list[str] = []
    path = "/v1/events?after=0-0&limit=2"
    while path:
        _, body, headers = await world.ask("GET", path)
        told += [event["subject"] for event in json.loads(body)]
        path = next_of(headers.get("Link", ""))
    assert told == made


async def test_events_from_now_on_are_those_that_come(world: World) -> None:
    status, body, _ = await world.ask("GET", "/v1/events?after=now")
    assert (status, body) == (200, b"[]"), "there is no event yet"
    await world.alice.submit(spec())
    status, body, _ = await world.ask("GET", "/v1/events?after=now")
    assert (status, body) == (200, b"[]")
    status, body, _ = await world.ask("GET", "/v1/events?after=soon")
    assert (status, error_of(body)[0]) == (400, "after")


def next_of(link: str) -> str:
    """`</v1/jobs?before=7>; rel="next"`; empty without one."""
    if not link:
        return ""
    where, _, rel = link.partition(">; ")
    assert (where[0], rel) == ("<", 'rel="next"')
    return where[1:]
