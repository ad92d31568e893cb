"""Errors of a client of the gateway; the tree is drawn in `weft.client`."""

from collections.abc import Sequence

_HINTS = ("did you mean ", "it belongs in ")


class ClientError(Exception):
    """A request to the gateway failed, no gateway is known, or `weft.Cluster.local` could not start one.

    `versions`: which of client and gateway to upgrade, if their minor versions differ and may be why; else empty.
    """

    def __init__(self, reason: str, *, versions: str = "") -> None:
        super().__init__(f"{reason}; {versions}" if versions else reason)
        self.versions = versions


class Refused(ClientError):  # noqa: N818 -- `except weft.Refused` names the outcome
    """The gateway refused the request: `field` is the place in the body (empty: all of it), `reason` is why.

    `status`: the HTTP status; 0 if the request was refused before it was sent. `value`: the refused value of that
    field, of a job that `weft.submit` was given. `errors` has all fields and reasons if there are several.
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
        value: object = None,
    ) -> None:
        super().__init__(f"{field}: {reason}" if field else reason, versions=versions)
        self.status = status
        self.field = field
        self.reason = reason
        self.retry_after = retry_after  # seconds; 0 where the gateway named none
        self.errors = tuple(errors) or ((field, reason),)
        self.value = value

    @property
    def hint(self) -> str:
        """The remedy that the reason proposes, such as `did you mean gpus?`; empty if it proposes none."""
        last = self.reason.rpartition("; ")[2]
        return last if last.startswith(_HINTS) else ""


class Unreachable(ClientError):  # noqa: N818 -- likewise
    """The gateway did not answer in time."""
