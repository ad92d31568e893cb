"""A service at a gateway that answers what a test tells it to."""

import asyncio
from typing import Any

from tests.support.told_gateway import ToldGateway
from weft.messages.http.services import EndpointsView, EndpointView
from weft.messages.http.sign_ins import CodeMade
from weftd.cli.__main__ import main

JOB = "j-aaaaaaaaaa"


async def weft(gateway: ToldGateway, name: str, *typed: str) -> int:
    place = ["--url", gateway.url, "--token", "a b+c"]
    words = typed.index("--") if "--" in typed else len(typed)
    return await asyncio.to_thread(main, [name, *typed[:words], *place, *typed[words:]])


def endpoints(gateway: ToldGateway, *found: EndpointView, **fields: Any) -> EndpointsView:
    """Told by the gateway, which plays the router too."""
    url = f"{gateway.url}/s/{JOB}/"
    view = EndpointsView(**{"job_id": JOB, "name": "chat", "digest": "d", "url": url, "endpoints": found, **fields})
    gateway.answers[f"GET /v1/jobs/{JOB}/endpoints"] = view
    gateway.answers["POST /v1/codes"] = CodeMade(code="code_1", expires_at=0.0, job=JOB)
    return view


def endpoint(rank: int, **fields: Any) -> EndpointView:
    usual = {"epoch": 0, "rank": rank, "node_id": "node-1", "address": "10.0.0.1", "port": 4000 + rank}
    return EndpointView(**{**usual, **fields})
