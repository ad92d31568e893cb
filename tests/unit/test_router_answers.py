"""The router's own answers."""

from http import HTTPStatus

import msgspec
import pytest

from weft.messages.http import ErrorView
from weftd.router.answers import refused
from weftd.router.thinking.routes import Refused


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 502, 503, 504])
def test_an_error_of_the_router_is_a_problem_with_its_status_title_and_detail(status: int) -> None:
    head, _, body = refused(Refused(status, "it is so"), "application/json").partition(b"\r\n\r\n")
    assert b"Content-Type: application/problem+json" in head
    said = msgspec.json.decode(body, type=ErrorView)
    assert (said.status, said.title, said.detail) == (status, HTTPStatus(status).phrase, "it is so")
    assert (said.error.status, said.error.reason) == (status, "it is so")
    assert said.error.message == "it is so", "where clients of OpenAI's API look for it"
