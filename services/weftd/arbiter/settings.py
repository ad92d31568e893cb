"""The arbiter's settings: ARBITER_… in the environment, and `--root` on the command line."""

from pathlib import Path
from typing import Annotated

import msgspec

from weft.sharing.pages import ENTRIES


class ArbiterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`root` has the slot folders. The arbiter looks there every `look_seconds`."""

    root: Path
    look_seconds: Annotated[float, msgspec.Meta(ge=0.001, le=1.0)] = 0.02
    clients_max: Annotated[int, msgspec.Meta(ge=1, le=ENTRIES + 1)] = ENTRIES + 1  # connections of one slot
    messages_per_second_max: Annotated[int, msgspec.Meta(ge=100)] = 20_000  # of one slot
