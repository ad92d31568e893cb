"""What can go wrong between a client and the gateway; the tree is drawn in `weft.client`."""

from collections.abc import Sequence


class ClientError(Exception):
    """A request to the gateway failed.

    `versions`: which of client and gateway to upgrade, if their minor versions differ and may be why; else empty.
    """

    def __init__(self, reason: str, *, versions: str = "") -> None:
        super().__init__(f"{reason}; {versions}" if versions else reason)
        self.versions = versions


class Refused(ClientError):  # noqa: N818 -- `except weft.Refused` names the outcome
    """The gateway refused the request: `field` is the place in the body (empty: all of it), `reason` is why.

    `errors` has all fields and reasons if the gateway found more than one.
    """

    def __init__(
        self,
        status: int,
        field: str,
        reason: str,
        *,
        retry_after: float = 0.0,
        errors: Sequence[tuple[str, str]] = (),
        versions: str = "",
    ) -> None:
        super().__init__(f"{field}: {reason}" if field else reason, versions=versions)
        self.status = status
        self.field = field
        self.reason = reason
        self.retry_after = retry_after  # seconds; 0 where the gateway named none
        self.errors = tuple(errors) or ((field, reason),)


class Unreachable(ClientError):  # noqa: N818 -- likewise
    """The gateway did not answer in time."""
