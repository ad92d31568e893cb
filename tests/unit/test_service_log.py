"""A record is one line, and no secret is in it."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from weft.service import log

TOKEN = "weft_" + "x" * 43


@pytest.fixture
def root() -> Iterator[None]:
    """The log as the test runner had it, afterwards."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    logger.handlers[:] = []
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def logged(style: str) -> list[str]:
    stream = io.StringIO()
    log.configure("scheduler", style=style, stream=stream)
    logger = logging.getLogger("weftd.scheduler")
    logger.info("job %s\nplaced", "j-1", extra={"job_id": "j-1", "gpus": 2, "admin_token": TOKEN})
    logger.debug("not this")
    try:
        raise ValueError(f"cannot open postgresql://weft:hunter2@db/weft with {TOKEN}")
    except ValueError:
        logger.exception("failed: Authorization: Bearer abc.def")
    return stream.getvalue().splitlines()


@pytest.mark.usefixtures("root")
def test_text_is_one_line_of_fields_a_record() -> None:
    first, second = logged("text")
    assert first.split(" ", 1)[0].startswith("at=20")
    assert first.split(" ", 1)[1] == (
        'level=info service=scheduler message="job j-1\\nplaced" job_id=j-1 gpus=2 admin_token=***'
        " logger=weftd.scheduler"
    )
    assert "ValueError: cannot open postgresql://***@db/weft with ***" in second


@pytest.mark.usefixtures("root")
def test_json_is_one_object_a_record() -> None:
    first, second = [json.loads(line) for line in logged("json")]
    assert (first["message"], first["job_id"], first["gpus"], first["level"]) == ("job j-1\nplaced", "j-1", 2, "info")
    assert second["error"].startswith("Traceback")


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("style", ["text", "json"])
def test_no_secret_gets_out(style: str) -> None:
    lines = "\n".join(logged(style))
    assert TOKEN not in lines
    assert "hunter2" not in lines
    assert "abc.def" not in lines
