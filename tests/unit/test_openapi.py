"""The OpenAPI document says what the gateway does."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from weft.domain.spec import JobSpec
from weftd.gateway.api.operations import OPERATIONS
from weftd.gateway.http.openapi import document
from weftd.gateway.http.route import Audience

DOCUMENT = document(OPERATIONS)
SCHEMAS = DOCUMENT["components"]["schemas"]


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in it."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from parts(each)


def operation(method: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][path][method.lower()]
    return found


def test_it_is_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(DOCUMENT)) == DOCUMENT


def test_every_operation_is_there_and_no_other() -> None:
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in OPERATIONS}


def test_every_reference_resolves() -> None:
    references = {part["$ref"] for part in parts(DOCUMENT) if "$ref" in part}
    assert references
    assert references == {f"#/components/schemas/{name}" for name in SCHEMAS}


def test_operation_ids_are_unique() -> None:
    ids = [each["operationId"] for methods in DOCUMENT["paths"].values() for each in methods.values()]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("route", OPERATIONS, ids=lambda route: f"{route.method} {route.path}")
def test_every_parameter_of_an_operation_is_described(route: Any) -> None:
    described = {(each["in"], each["name"]) for each in operation(route.method, route.path)["parameters"]}
    assert {("path", name) for name in re.findall(r"{(\w+)}", route.path)} <= described
    assert {("query", name) for name in route.query.__struct_fields__} <= described
    assert {("header", each.name) for each in route.headers if not each.of_answer} <= described


@pytest.mark.parametrize("route", OPERATIONS, ids=lambda route: f"{route.method} {route.path}")
def test_who_may_call_it_is_described(route: Any) -> None:
    described = operation(route.method, route.path)
    assert (described.get("security") == []) == (route.who is Audience.ANYONE)
    assert ("administrator's token" in described.get("description", "")) == (
        route.who in (Audience.ADMIN, Audience.OPERATOR)
    )
    checks = {("POST", "/v1/sessions"), ("GET", "/v1/oidc/callback"), ("POST", "/v1/nodes/{node}/join")}
    asks = route.who is not Audience.ANYONE or (route.method, route.path) in checks
    assert ("401" in described["responses"]) == asks


def test_a_submission_is_described_by_the_type_it_is_decoded_with() -> None:
    body = operation("POST", "/v1/jobs")["requestBody"]["content"]
    assert set(body) == {"application/json", "application/yaml", "text/yaml", "application/x-yaml"}
    assert all(each["schema"] == {"$ref": "#/components/schemas/JobSpec"} for each in body.values())
    assert set(SCHEMAS["JobSpec"]["properties"]) == set(JobSpec.__struct_fields__)
    assert SCHEMAS["JobSpec"]["additionalProperties"] is False


def test_every_error_has_the_one_shape() -> None:
    for route in OPERATIONS:
        responses = operation(route.method, route.path)["responses"]
        for status, response in responses.items():
            if status >= "400" and int(status) not in route.answers:
                schema = response["content"]["application/problem+json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorView"}, (route.path, status)


def test_every_operation_has_an_example() -> None:
    for methods in DOCUMENT["paths"].values():
        for each in methods.values():
            assert each["x-curl"].startswith("curl")
