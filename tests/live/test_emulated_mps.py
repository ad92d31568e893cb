"""The emulated MPS daemon and the emulated driver as its client: ceilings, the ways in which it fails open, its end."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from libs.sharing.emulated_mps import COMMAND
from libs.sharing.native import Built
from tests.support.odd_folders import swept
from tests.support.scripted_arbiter import environment, output, program

pytestmark = pytest.mark.alone

MIB = 1 << 20
LAUNCH = "d = Driver(); begun = time.monotonic(); [d.launch(2000) for _ in range(50)]; d.synchronize()"
TOOK = f"{LAUNCH}; print(time.monotonic() - begun)"
ALLOCATE = "d = Driver(); print(d.allocate(100 << 20) is not None, *d.memory())"


@contextmanager
def daemon() -> Iterator[Path]:
    """A daemon, by its pipe folder."""
    folder = Path(tempfile.mkdtemp(prefix="wem-"))
    with swept(folder):
        assert said(folder, begin=True) == ""
        yield folder
        said(folder, "quit")


def said(pipe: Path, *commands: str, begin: bool = False) -> str:
    done = subprocess.run(
        [*COMMAND, "-d"] if begin else COMMAND,
        input="\n".join(commands),
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.stdout if done.returncode == 0 else done.stderr


def environ(built: Built, device: Path, pipe: Path, **more: str) -> dict[str, str]:
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "WEFT_EMULATED_UUID": "GPU-a", "WEFT_EMULATED_MEMORY": str(256 * MIB)}
    return {**os.environ, **environment(built, device), **own, **more}


@pytest.mark.parametrize(("percentage", "seconds"), [("25", 0.4), ("100", 0.1), ("none", 0.1)])
def test_a_client_has_its_percentage_of_an_idle_gpu(
    built: Built, device: Path, percentage: str, seconds: float
) -> None:
    with daemon() as pipe:
        env = environ(built, device, pipe, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=percentage)
        assert float(output(program(TOOK, env))) == pytest.approx(seconds, abs=0.08)


def test_without_a_daemon_a_process_has_the_whole_gpu_and_no_error(built: Built, device: Path, tmp_path: Path) -> None:
    limits = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-a=64M",
    }
    env = environ(built, device, tmp_path / "none", **limits)
    assert float(output(program(TOOK, env))) == pytest.approx(0.1, abs=0.08)
    assert output(program(ALLOCATE, env)).split()[0] == "True"


@pytest.mark.parametrize(
    ("limit", "given"),
    [
        ("GPU-a=64M", "False"),
        ("0=64M", "False"),
        ("GPU-a=1G", "True"),
        ("GPU-a=64M,GPU-b=1G", "True"),
        ("GPU-a=64", "True"),
    ],
)
def test_memory_is_refused_beyond_the_limit_unless_one_entry_drops_them_all(
    built: Built, device: Path, limit: str, given: str
) -> None:
    with daemon() as pipe:
        env = environ(built, device, pipe, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=limit)
        done, free, total = output(program(ALLOCATE, env)).split()
    assert (done, int(total)) == (given, 256 * MIB)
    assert int(free) == (64 * MIB if given == "False" else 156 * MIB)


def test_the_control_program_names_clients_until_they_end_and_there_is_one_daemon(built: Built, device: Path) -> None:
    with daemon() as pipe:
        assert said(pipe, begin=True) == "An instance of this daemon is already running\n"
        assert said(pipe, "get_server_list") == ""
        text = "d = Driver(); print(os.getpid(), flush=True); sys.stdin.readline()"
        client = program(f"import os\n{text}", environ(built, device, pipe))
        assert client.stdout is not None
        pid = client.stdout.readline()
        server = said(pipe, "get_server_list").strip()
        assert said(pipe, f"get_client_list {server}") == pid
        client.communicate("\n", timeout=30)
        assert said(pipe, f"get_client_list {server}") == ""
        assert said(pipe, "no_such_command") == "Unknown command\n"
    assert "Cannot find MPS control daemon process" in said(pipe, "get_server_list")


def test_no_call_of_a_client_succeeds_once_its_daemon_has_ended(built: Built, device: Path) -> None:
    with daemon() as pipe:
        text = "d = Driver(); print(flush=True); sys.stdin.readline(); print(d.call('cuCtxSynchronize'))"
        client = program(text, environ(built, device, pipe))
        assert client.stdout is not None
        client.stdout.readline()
        said(pipe, "quit")
        out, _ = client.communicate("\n", timeout=30)
    assert int(out) != 0
