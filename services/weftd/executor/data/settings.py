"""The settings of the data that jobs have in object stores."""

from msgspec import Struct


class DataSettings(Struct, frozen=True, kw_only=True):
    data_bytes_max: int = 100 << 30  # all copies of the node; a mount that is larger is refused
    data_transfers: int = 8  # objects that are copied at once, by one copy
    data_copies: int = 2  # copies, and uploads, of one tenant at once
    data_silent_seconds: float = 60.0  # a copy that moves no byte for so long is ended, and tried again
    data_upload_seconds: float = 60.0  # between two uploads of the outputs of a run that goes on
    data_rclone: str = ""  # the path of the program; empty: found beside Python, or in PATH

    def __post_init__(self) -> None:
        if self.data_bytes_max < 0:
            raise ValueError("data_bytes_max is not negative")
        if not 1 <= self.data_transfers <= 64 or not 1 <= self.data_copies <= 64:
            raise ValueError("data_transfers and data_copies are 1 to 64")
        if self.data_upload_seconds < 1:
            raise ValueError(f"data_upload_seconds {self.data_upload_seconds:g} is less than 1")
        if self.data_silent_seconds < 1:
            raise ValueError(f"data_silent_seconds {self.data_silent_seconds:g} is less than 1")
