"""The folder of a router's sockets."""

import os
import tempfile
from pathlib import Path

import pytest

from weft.service.config import SettingsError
from weftd.router.sockets import ADMIN_SOCKET, SHORT_FOLDER, SOCKET_PATH_MAX, folder_of


def test_the_usual_folder_is_in_that_of_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir=SHORT_FOLDER) as temporary:
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        folder = folder_of("", 65000)
        assert folder.parent == Path(temporary)
        assert folder.is_dir()


def test_the_usual_folder_is_another_where_its_name_would_be_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir=SHORT_FOLDER) as temporary:
        long = Path(temporary) / ("x" * 90)
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        folder = folder_of("", 1)  # no router listens at this port
    try:
        assert folder.parent == SHORT_FOLDER
        assert folder.is_dir()
    finally:
        folder.rmdir()


def test_a_folder_that_was_asked_for_is_refused_when_its_name_is_too_long(tmp_path: Path) -> None:
    room = SOCKET_PATH_MAX - len(os.fsencode(tmp_path)) - len(f"/{ADMIN_SOCKET}/")
    if room < 0:
        pytest.skip("the folder of this test has too long a name itself")
    longest = tmp_path / ("x" * room)
    assert folder_of(str(longest), 65000) == longest
    with pytest.raises(SettingsError, match="is too long for the address of a socket"):
        folder_of(f"{longest}x", 65000)
    assert not Path(f"{longest}x").exists()
