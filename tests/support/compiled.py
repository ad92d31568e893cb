"""The compiled hook and the emulated driver, for tests of shares."""

from pathlib import Path

from msgspec import Struct

from weft.emulation.native import DRIVER
from weft.sharing import native
from weft.sharing.native import HOOK, NotBuilt


class Built(Struct, frozen=True):
    """`hook`: for LD_PRELOAD. `driver_folder`: has the emulated libcuda.so.1, for LD_LIBRARY_PATH."""

    hook: Path
    driver_folder: Path


def build() -> Built | NotBuilt:
    hook, driver = native.build(HOOK), native.build(DRIVER)
    if isinstance(hook, NotBuilt):
        return hook
    return driver if isinstance(driver, NotBuilt) else Built(hook, driver.parent)
