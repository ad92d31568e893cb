"""The one error that a command shows to a person."""


class CliError(Exception):
    """An error for a person, one line for each reason; `status` is the exit status of `weft`."""

    def __init__(self, reason: str, *, field: str = "", status: int = 1) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason
        self.status = status
