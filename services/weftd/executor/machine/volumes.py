"""The volumes that a node's owner offers to jobs by name: what may be offered, and the path that a run gets.

A path is resolved once, when the executor begins, and a run gets it only while it leads to the same place: who can
write in a volume cannot make another one, or a folder beside it, out of it by a link.
"""

import logging
import os
from collections.abc import Iterable, Mapping
from typing import Annotated

from msgspec import Meta, Struct, structs

from weft.domain.cluster import TENANTS_OF_VOLUME_MAX, OfferedVolume
from weft.domain.object_store.urls import is_within, plain_path
from weft.domain.spec import Path, Token, Volume

logger = logging.getLogger(__name__)


class OwnedVolume(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder of this node. `tenants`: whose jobs may have it; empty: all tenants'."""

    path: Path
    read_only: bool = False
    tenants: Annotated[tuple[Token, ...], Meta(max_length=TENANTS_OF_VOLUME_MAX)] = ()


class VolumeRefusedError(Exception):
    """Why a run does not get a volume, in words for the user."""


def check(volumes: Mapping[str, OwnedVolume], home: str) -> None:
    """Raises ValueError for a volume that would give jobs files of the executor, or a part of another volume that jobs
    write to."""
    for name, volume in volumes.items():
        if ".." in volume.path.split("/"):
            raise ValueError(f"volume {name}: {volume.path} must not contain '..'")
        if _lies_in(home, volume.path) or _lies_in(volume.path, home):
            raise ValueError(
                f"volume {name}: one of {volume.path} and the executor's home {home} lies within the other"
            )
        for other, outer in volumes.items():
            if other != name and not outer.read_only and _lies_in(volume.path, outer.path):
                why = "into which jobs write: they could replace it by a link"
                raise ValueError(f"volume {name}: {volume.path} lies in the volume {other}, {why}")


def resolved(volumes: Mapping[str, OwnedVolume], home: str) -> dict[str, OwnedVolume]:
    """The volumes with their real paths, without those that are no folder now. Raises ValueError as `check`."""
    found: dict[str, OwnedVolume] = {}
    for name, volume in volumes.items():
        path = os.path.realpath(volume.path)
        if os.path.isdir(path):
            found[name] = structs.replace(volume, path=path)
        else:
            logger.warning("the volume %s is not offered: %s is no folder", name, volume.path)
    check(found, os.path.realpath(home))
    return found


def offered(volumes: Mapping[str, OwnedVolume]) -> tuple[OfferedVolume, ...]:
    """The volumes as reported to the control plane, without paths."""
    return tuple(
        OfferedVolume(name=name, read_only=volume.read_only, tenants=volume.tenants)
        for name, volume in sorted(volumes.items())
    )


def paths_for(wanted: Iterable[Volume], tenant: str, volumes: Mapping[str, OwnedVolume]) -> dict[str, str]:
    """By name, the path of each volume that a run of `tenant` names. Raises VolumeRefusedError."""
    paths: dict[str, str] = {}
    for one in wanted:
        volume = volumes.get(one.name)
        if volume is None or (volume.tenants and tenant not in volume.tenants):
            raise VolumeRefusedError(f"this node does not offer the volume {one.name} to {tenant}")
        if volume.read_only and not one.read_only:
            raise VolumeRefusedError(f"this node offers the volume {one.name} read-only")
        if os.path.realpath(volume.path) != volume.path or not os.path.isdir(volume.path):
            raise VolumeRefusedError(f"the volume {one.name} has moved since this node's executor started")
        paths[one.name] = volume.path
    return paths


def _lies_in(path: str, folder: str) -> bool:
    return is_within(plain_path(path), plain_path(folder))
