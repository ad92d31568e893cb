"""The image of the jobs: Python of a local base, NumPy of this interpreter, and `jobs/`. Made without any registry."""

import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import docker
import numpy as np
from docker.errors import BuildError, DockerException, ImageNotFound

NAME = "weft-bench-nearchus:local"
LABEL = "weft.source"
JOBS = Path(__file__).with_name("jobs")
PACKAGES = Path(np.__file__).parents[1]
ONE_THREAD = "ENV OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1"


class ImageMissingError(Exception):
    """It cannot be made here; says why."""


def base() -> str:
    return os.environ.get("WEFT_JOB_IMAGE", "weft-job-python:local")


def has_base() -> bool:
    """Whether there are an engine and the image that all others are made of. Blocks."""
    try:
        engine = docker.from_env()
    except DockerException:
        return False
    try:
        engine.images.get(base())
    except DockerException:
        return False
    finally:
        engine.close()
    return True


def make_image() -> str:
    """Its name, once it is there and made of what is here now. Blocks. Raises ImageMissingError."""
    try:
        engine = docker.from_env()
    except DockerException as error:
        raise ImageMissingError(f"no Docker engine: {error}") from error
    try:
        below = engine.images.get(base())
        source = _digest(str(below.id))
        if _label(engine) != source:
            engine.images.build(
                fileobj=_context(), custom_context=True, tag=NAME, labels={LABEL: source}, rm=True, network_mode="none"
            )
    except ImageNotFound as error:
        raise ImageMissingError(
            f"no image {base()}: deploy/local-images makes it, or name one in WEFT_JOB_IMAGE"
        ) from error
    except BuildError as error:
        raise ImageMissingError(f"{base()} cannot load the NumPy of this interpreter: {error}") from error
    finally:
        engine.close()
    return NAME


def remove_network(name: str) -> None:
    """The one that a node's lone containers shared: an executor leaves it to the next."""
    engine = docker.from_env()
    try:
        for network in engine.networks.list(names=[name]):
            network.remove()
    finally:
        engine.close()


def _label(engine: Any) -> str:
    try:
        return str(engine.images.get(NAME).labels.get(LABEL, ""))
    except ImageNotFound:
        return ""


def _digest(below: str) -> str:
    of = hashlib.sha256(f"{below} {np.__version__} {ONE_THREAD}".encode())
    for path in sorted(JOBS.glob("*.py")):
        of.update(path.read_bytes())
    return of.hexdigest()[:16]


def _context() -> io.BytesIO:
    lines = (
        f"FROM {base()}",
        ONE_THREAD,
        "ENV PYTHONPATH=/bench",
        "COPY bench /bench",
        "RUN python3 -c 'import numpy'",
    )
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        text = "\n".join(lines).encode()
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
        for name in ("numpy", "numpy.libs"):
            tar.add(PACKAGES / name, f"bench/{name}", filter=_wanted)
        tar.add(JOBS, "bench/jobs", filter=_wanted)
    made.seek(0)
    return made


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name or "/tests/" in entry.name else entry
