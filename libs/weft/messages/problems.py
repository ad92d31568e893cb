"""An error as the gateway and the router answer it: `application/problem+json` (RFC 9457)."""

from collections.abc import Sequence
from http import HTTPStatus

import msgspec

from weft.messages.http import ErrorDetail, ErrorView, FieldError

PROBLEM = "application/problem+json"


def problem(
    status: int, field: str, reason: str, errors: Sequence[tuple[str, str]] = (), *, message: str = ""
) -> bytes:
    """`field`: the place in the request (empty: all of it); `errors`: all fields and reasons if there are several."""
    more = (
        tuple(FieldError(field=_shown(where), reason=_shown(why)) for where, why in errors) if len(errors) > 1 else ()
    )
    detail = ErrorDetail(field=_shown(field), reason=_shown(reason), status=status, errors=more, message=message)
    words = f"{detail.field}: {detail.reason}" if field else detail.reason
    return msgspec.json.encode(ErrorView(error=detail, title=_title(status), status=status, detail=words))


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"Status {status}"


def _shown(text: str) -> str:
    """Text from a request as it can be quoted: it may be no valid Unicode."""
    return text.encode(errors="backslashreplace").decode()
