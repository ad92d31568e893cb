"""Why a step was taken, as versions that differ tell it to each other."""

import msgspec

from weft.domain.job import Cause, CauseCode


def test_a_code_that_only_a_later_version_knows_is_read_as_another() -> None:
    cause = msgspec.json.decode(b'{"code": "sold-out", "sentence": "the GPU was sold"}', type=Cause)
    assert (cause.code, cause.sentence) == (CauseCode.OTHER, "the GPU was sold")
    assert msgspec.convert({"code": "no-room"}, Cause).code is CauseCode.NO_ROOM
