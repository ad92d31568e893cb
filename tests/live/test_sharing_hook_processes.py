"""The hook in real processes, on the emulated driver: finding the calls, and processes."""

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.compiled import Built
from tests.support.scripted_arbiter import (
    CAPPED,
    GATED,
    HELLO,
    MIB,
    WANT,
    ScriptedArbiter,
    never,
    output,
    program,
)
from weft.emulation.native import DRIVER, NAME
from weft.sharing.native import Compiler, compile_file, find_compiler

# how a program finds the calls


def test_a_call_asked_for_by_name_is_the_hooked_one_in_its_version(
    built: Built, device: Path, arbiter: ScriptedArbiter
) -> None:
    text = """
d = Driver()
def same(name, version, flags, symbol, older=False):
    status, found = d.address(name, version, flags, older=older)
    print(status == 0 and found == ctypes.cast(getattr(d.library, symbol), c_void_p).value, end=" ")
for older in (False, True):
    for flags, ending in ((0, ""), (1, ""), (2, "_ptsz")):
        same("cuLaunchKernel", 7000, flags, "cuLaunchKernel" + ending, older)
        same("cuGraphLaunch", 12000, flags, "cuGraphLaunch" + ending, older)
        same("cuMemAllocAsync", 11020, flags, "cuMemAllocAsync" + ending, older)
        same("cuMemAlloc", 3020, flags, "cuMemAlloc_v2", older)
        same("cuGetProcAddress", 11030, flags, "cuGetProcAddress", older)
        same("cuGetProcAddress", 12000, flags, "cuGetProcAddress_v2", older)
print()
print(d.address("", 12000)[0], d.address("cuNoSuchCall", 12000)[0], d.address("cuInit", 2000)[1] is not None)
"""
    first, second = output(program(text, arbiter.environment(built, device))).splitlines()
    assert set(first.split()) == {"True"}
    assert second.split() == ["0", "500", "True"]


def test_a_launch_found_by_name_waits_for_the_turn(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, answer=never) as arbiter:
        text = """
d = Driver()
form = ctypes.CFUNCTYPE(c_int, c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)
launch = form(d.address("cuLaunchKernel", 7000, 2)[1])
number = c_uint(1000); parameters = (c_void_p * 1)(ctypes.addressof(number))
print(launch(d.spin, 1, 1, 1, 1, 1, 1, 0, None, parameters, None))
"""
        job = program(text, arbiter.environment(built, device))
        arbiter.wait_for(lambda: bool(arbiter.ops(WANT)))
        assert job.poll() is None
        arbiter.grant(1)
        assert output(job) == "0\n"


def test_a_driver_that_answers_with_the_hook_itself_does_not_call_in_a_circle(
    built: Built, device: Path, arbiter: ScriptedArbiter, tmp_path: Path
) -> None:
    """One that is linked without -Bsymbolic: its own table of calls has the preloaded ones."""
    compiler = find_compiler()
    assert isinstance(compiler, Compiler)
    (tmp_path / "driver").mkdir()
    flags = [flag for flag in DRIVER.flags if flag != "-Wl,-Bsymbolic"]
    assert len(flags) < len(DRIVER.flags)
    assert compile_file(compiler, tmp_path / "driver" / NAME, DRIVER.sources, flags) is None
    text = """
d = Driver()
form = ctypes.CFUNCTYPE(c_int, c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)
launch = form(d.address("cuLaunchKernel", 7000)[1])
number = c_uint(1000); parameters = (c_void_p * 1)(ctypes.addressof(number))
for _ in range(5): assert launch(d.spin, 1, 1, 1, 1, 1, 1, 0, None, parameters, None) == 0
d.launch(1000); d.synchronize()
"""
    output(program(text, arbiter.environment(built, device, LD_LIBRARY_PATH=str(tmp_path / "driver"))))
    assert arbiter.launches == 6


def test_an_object_that_asks_for_the_next_definition_gets_it(
    built: Built, device: Path, arbiter: ScriptedArbiter, tmp_path: Path
) -> None:
    """RTLD_NEXT means the object after the caller: the override must not become the caller."""
    source, library = tmp_path / "next.c", tmp_path / "libnext.so"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\nint puts(const char *s) { (void)s; return 0; }\n"
        'void *next(void) { return dlsym(RTLD_NEXT, "puts"); }\n'
        'void *versioned(void) { return dlvsym(RTLD_NEXT, "puts", "GLIBC_2.2.5"); }\n'
    )
    compiler = find_compiler()
    assert isinstance(compiler, Compiler)
    flags = ("-shared", "-fPIC", "-fno-builtin")
    subprocess.run([*compiler.command, *flags, "-o", library, source], check=True, timeout=60)
    text = f"""
lib = ctypes.CDLL({str(library)!r}, mode=ctypes.RTLD_GLOBAL)
for name in ("next", "versioned"): getattr(lib, name).restype = c_void_p
libc = ctypes.cast(ctypes.CDLL("libc.so.6").puts, c_void_p).value
print(lib.next() == libc, lib.next() != ctypes.cast(lib.puts, c_void_p).value, lib.versioned() in (libc, None))
"""
    assert output(program(text, arbiter.environment(built, device))).split() == ["True"] * 3


# processes


def test_a_child_of_a_fork_has_neither_turn_nor_entry_of_its_parent(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, flags=GATED | CAPPED, memory_limit=64 * MIB) as arbiter:
        text = """
d = Driver(); d.allocate(16 << 20); d.launch(1000); d.synchronize()
child = os.fork()
if child == 0:
    status = d.call("cuInit", c_uint(0))  # the driver cannot be used after a fork
    os._exit(0 if status else 1)
_, status = os.waitpid(child, 0)
d.launch(1000); d.synchronize()
print(os.waitstatus_to_exitcode(status), d.memory()[0] >> 20)
"""
        assert output(program(text, arbiter.environment(built, device))).split() == ["0", "48"]
        assert len(arbiter.ops(HELLO)) == 1


def test_a_child_that_uses_the_gpu_is_a_process_of_its_own(built: Built, device: Path, slot: Path) -> None:
    """Forked before the driver is used, as data loaders and launchers do."""
    with ScriptedArbiter(slot, flags=GATED | CAPPED, memory_limit=64 * MIB) as arbiter:
        text = """
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        d = Driver(); kept = d.allocate(8 << 20); d.launch(1000); d.synchronize()
        time.sleep(0.5); os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
        job = program(text, arbiter.environment(built, device))
        arbiter.wait_for(lambda: len({said.pid for said in arbiter.ops(HELLO)}) == 3)
        arbiter.wait_for(lambda: [entry.memory for entry in arbiter.entries()] == [8 * MIB] * 3)
        assert output(job) == "[0, 0, 0]\n"


def test_a_program_that_becomes_another_takes_its_entry_over(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, flags=GATED | CAPPED, memory_limit=64 * MIB) as arbiter:
        again = "from tests.support.driver_client import *\nd = Driver(); d.launch(1000); print(d.memory()[0] >> 20)"
        text = f"""
d = Driver(); d.allocate(16 << 20); d.launch(1000); d.synchronize(); print(d.memory()[0] >> 20, flush=True)
os.execv(sys.executable, [sys.executable, "-c", {again!r}])
"""
        assert output(program(text, arbiter.environment(built, device))).split() == ["48", "64"]
        first, second = arbiter.ops(HELLO)
        assert (first.pid, first.a) == (second.pid, second.a)
        assert second.b == first.b + 1


def test_a_job_that_unsets_the_preload_is_seen_nowhere(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    """What the hook cannot hold, and what the attach check is for."""
    environ = arbiter.environment(built, device)
    del environ["LD_PRELOAD"]
    output(program("d = Driver(); d.launch(1000); d.synchronize()", environ))
    assert arbiter.entries() == []
    assert arbiter.launches == 0


def test_a_program_that_closes_every_descriptor_goes_on(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    text = """
d = Driver(); d.launch(1000); d.synchronize()
os.closerange(3, 1000)
kept = [os.open("/dev/null", os.O_RDWR) for _ in range(900)]
for _ in range(20): d.launch(1000)
d.synchronize()
print("done")
"""
    assert output(program(text, arbiter.environment(built, device))) == "done\n"
    arbiter.wait_for(lambda: arbiter.launches == 21)


def test_a_stopped_process_blocks_no_other(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    arbiter.set_flags(0)
    text = "d = Driver()\nwhile True: d.launch(1000)"
    stopped = program(text, arbiter.environment(built, device))
    arbiter.wait_for(lambda: arbiter.launches > 20)
    stopped.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    output(
        program("d = Driver()\nfor _ in range(20): d.launch(1000)\nd.synchronize()", arbiter.environment(built, device))
    )
    assert time.monotonic() - begun < 10
    stopped.kill()
    stopped.communicate()


# other C libraries


PLAIN = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static void *work(void *argument) { free(malloc(10)); return argument; }
int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL) || pthread_join(thread, NULL)) return 1;
#ifdef LOOKS_UP
    if (dlsym(RTLD_DEFAULT, "puts") != (void *)puts || dlsym(RTLD_NEXT, "no_such_call")) return 2;
#endif
    puts("ran");
    return 0;
}
"""


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [("cc", ("-static",)), ("musl-gcc", ("-static",)), ("musl-gcc", ("-DLOOKS_UP",)), ("cc", ("-DLOOKS_UP",))],
)
def test_a_program_that_the_hook_cannot_serve_runs_as_without_it(
    built: Built, device: Path, arbiter: ScriptedArbiter, tmp_path: Path, compiler: str, flags: tuple[str, ...]
) -> None:
    """A static one ignores the preload. A dynamic one of musl loads it, and would not start if musl could not."""
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler} here")
    source, made = tmp_path / "plain.c", tmp_path / "plain"
    source.write_text(PLAIN)
    subprocess.run([compiler, source, *flags, "-o", made, "-lpthread", "-ldl"], check=True, timeout=60)
    done = subprocess.run(
        [made], env=arbiter.environment(built, device), capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert not arbiter.ops(HELLO), "it is not held to its share, and says nothing else"


def test_the_hook_names_no_library_that_only_glibc_has(built: Built) -> None:
    """musl refuses to start any program with a preloaded library that names glibc's loader."""
    assert b"ld-linux" not in built.hook.read_bytes()
