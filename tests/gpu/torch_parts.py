"""The parts of a day on real hardware that need PyTorch: the share hook under it. Where PyTorch with CUDA cannot be
imported, each of them is skipped, with the reason."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct

from tests.gpu.found import Found, SkippedError, WrongError
from weft.domain.cluster import Gpu
from weft.domain.shares import context_bytes
from weft.sharing import native, slots
from weft.sharing.native import HOOK, NotBuilt
from weft.sharing.records import SlotShare

POINTS = 2.0  # that a share may be off, in hundredths of the GPU
SLOWER_MAX = 0.03  # the part of its steps that a job may lose to the hook
RESIZED_SECONDS_MAX = 2.0
SPLITS = ((700, 300), (500, 500))
SECONDS, WARM_SECONDS, WINDOW_SECONDS = 8.0, 2.0, 1.0
STARTS_SECONDS_MAX = 90.0  # to import PyTorch, and to make its context
LEAD_SECONDS = 10.0  # by which one of two jobs may begin before the other
CAPPED_BYTES = 4 << 30
ALLOCATORS = {"caching": "", "async": "backend:cudaMallocAsync"}
_PROBE = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 3)"
_ARBITER = "import weftd.arbiter.__main__"

Line = Mapping[str, Any]


class Steps(Struct, frozen=True):
    """How many steps a job had done at which times."""

    at: tuple[float, ...]
    done: tuple[float, ...]

    def by(self, at: float) -> float:
        """The steps done by then, in a straight line between two lines of the job."""
        after = min(max(1, bisect_right(self.at, at)), len(self.at) - 1)
        begin, end = self.at[after - 1], self.at[after]
        part = min(1.0, max(0.0, (at - begin) / (end - begin)))
        return self.done[after - 1] + part * (self.done[after] - self.done[after - 1])


def steps_of(lines: Sequence[Line]) -> Steps:
    """Raises WrongError if there are too few."""
    told = [(float(each["at"]), float(each["steps"])) for each in lines if "steps" in each]
    if len(told) < 2:
        raise WrongError(f"a job reported its steps {len(told)} times")
    return Steps(tuple(at for at, _ in told), tuple(done for _, done in told))


def windows(jobs: Sequence[Steps], *, begin: float = 0.0) -> list[tuple[float, tuple[float, ...]]]:
    """The end of each window in which all jobs ran, and the part of each job in all steps of the window. `begin`: no
    window is before."""
    at, until = max(begin, *(each.at[0] + WARM_SECONDS for each in jobs)), min(each.at[-1] for each in jobs)
    found = []
    while at + WINDOW_SECONDS <= until:
        done = [each.by(at + WINDOW_SECONDS) - each.by(at) for each in jobs]
        at += WINDOW_SECONDS / 4
        if total := sum(done):
            found.append((at - WINDOW_SECONDS / 4 + WINDOW_SECONDS, tuple(each / total for each in done)))
    if not found:
        raise WrongError("the jobs did not run together for long enough")
    return found


def points_off(parts: Sequence[tuple[float, ...]], split: Sequence[int]) -> float:
    """How far the middle window is from its split, in points, for the job that is off the most."""
    return max(abs(median(each[job] for each in parts) - due / 1000) * 100 for job, due in enumerate(split))


class Torch:
    """Runs the programs of `torch_job` on one GPU, alone or with a share of it under the hook and an arbiter."""

    def __init__(self, gpu: Gpu, folder: Path, hook: Path) -> None:
        self._gpu, self._root, self._hook = gpu, folder / "s", hook
        self._root.mkdir()
        self._running: list[subprocess.Popen[str]] = []
        self._arbiter = subprocess.Popen([sys.executable, "-m", "weftd.arbiter", "--root", str(self._root)])

    def share(self, name: str, request: int, *, memory: int = 0, latency: bool = False) -> None:
        """Give a job a share, or another one while it runs."""
        context = context_bytes(emulated=False)
        share = SlotShare(
            gpu=self._gpu.uuid,
            job=name,
            request=request,
            memory=memory + context if memory else 0,
            latency=latency,
            device_memory=self._gpu.memory,
            context_mib=context >> 20,
        )
        job = slots.make_slot(self._root, name, share)
        ends = time.monotonic() + 10.0
        while not (job / slots.SOCKET).exists():
            if time.monotonic() > ends:
                raise WrongError("the arbiter does not serve a share within 10 s")
            time.sleep(0.01)

    def run(self, *arguments: str, share: str = "", allocator: str = "") -> Callable[[float], list[Line]]:
        """Start a program. The answer is a function that waits for its end and returns its lines; the seconds are
        the longest that it may take, without its start."""
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": self._gpu.uuid, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        if allocator:
            env["PYTORCH_CUDA_ALLOC_CONF"] = allocator
        if share:
            env |= {"LD_PRELOAD": str(self._hook), "WEFT_SHARE": str(self._root / share / slots.JOB)}
        command = [sys.executable, "-m", "tests.gpu.torch_job", *arguments]
        job = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._running.append(job)

        def ended(seconds: float) -> list[Line]:
            try:
                out, err = job.communicate(timeout=seconds + STARTS_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                raise WrongError(f"{arguments[0]} did not end within {seconds + STARTS_SECONDS_MAX:g} s") from None
            if job.returncode:
                raise WrongError(f"{arguments[0]} ended with status {job.returncode}: {err.strip()[-300:]}")
            return [msgspec.json.decode(line) for line in out.splitlines() if line.startswith("{")]

        return ended

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        for process in (*self._running, self._arbiter):
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10.0)


@contextmanager
def torch_on(gpu: Gpu) -> Iterator[Torch]:
    """Raises SkippedError where PyTorch sees no GPU, or the hook cannot be compiled."""
    for code, whose in ((_PROBE, "PyTorch"), (_ARBITER, "the arbiter")):
        try:
            probed = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=STARTS_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise SkippedError(f"{whose} could not be imported within {STARTS_SECONDS_MAX:g} s") from None
        if probed.returncode == 3:
            raise SkippedError("PyTorch sees no CUDA here")
        if probed.returncode:
            raise SkippedError(f"{whose} cannot be imported here")
    hook = native.build(HOOK)
    if isinstance(hook, NotBuilt):
        raise SkippedError(f"the share hook cannot be compiled here: {hook.reason}")
    folder = Path(tempfile.mkdtemp(prefix="wgd-"))  # a short path, as sockets need
    try:
        torch = Torch(gpu, folder, hook)
        try:
            yield torch
        finally:
            torch.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


Opener = Callable[[Gpu], AbstractContextManager[Any]]


def identical(gpu: Gpu, opener: Opener, until: float) -> Found:
    """Training under the hook ends with the same weights, bit for bit: with both allocators, and with CUDA graphs."""
    found: Found = {}
    with opener(gpu) as torch:
        torch.share("a", 1000)
        for name, allocator in ALLOCATORS.items():
            for graph in ((), ("--graph",)):
                what = f"{name}{' and graphs' if graph else ''}"
                if found and time.monotonic() > until:
                    found[what] = "no time was left"
                    continue
                alone, hooked = (
                    torch.run("train", *graph, share=share, allocator=allocator)(SECONDS)[-1]["digest"]
                    for share in ("", "a")
                )
                if alone != hooked:
                    raise WrongError(f"{what}: the weights differ under the hook")
                found[what] = "identical"
    return found


def split(gpu: Gpu, opener: Opener, until: float) -> Found:
    """Two jobs get their shares of the GPU, also after a resize while they run."""
    del until
    found: Found = {}
    for shares in SPLITS:
        with opener(gpu) as torch:
            jobs = [_begin(torch, name, share) for name, share in zip("ab", shares, strict=True)]
            steps = [steps_of(job(SECONDS + LEAD_SECONDS)) for job in jobs]
        off = points_off([parts for _, parts in windows(steps)], shares)
        found["/".join(f"{share // 10}" for share in shares)] = {"points_off": round(off, 2)}
        if off > POINTS:
            raise WrongError(f"the shares {shares} are off by {off:.1f} points, more than {POINTS:g}")
    with opener(gpu) as torch:
        jobs = [_begin(torch, "a", 700, 3), _begin(torch, "b", 300, 3)]
        torch.sleep(LEAD_SECONDS + SECONDS)  # in which both have begun
        at = time.monotonic()
        torch.share("a", 300)
        torch.share("b", 700)
        steps = [steps_of(job(3 * SECONDS + LEAD_SECONDS)) for job in jobs]
    took = resized_after(steps, (300, 700), at)
    found["resized_after_s"] = took
    if took is None or took > RESIZED_SECONDS_MAX:
        raise WrongError(f"a resize was not felt within {RESIZED_SECONDS_MAX:g} s")
    return found


def resized_after(jobs: Sequence[Steps], shares: Sequence[int], at: float) -> float | None:
    """When the first window after a resize began whose parts are as they should be; None: none was."""
    for end, parts in windows(jobs, begin=at):
        if points_off([parts], shares) <= POINTS:
            return round(end - WINDOW_SECONDS - at, 2)
    return None


def capped(gpu: Gpu, opener: Opener, until: float) -> Found:
    """A job gets no more memory than its share has, with both allocators."""
    del until
    found: Found = {}
    with opener(gpu) as torch:
        torch.share("a", 1000, memory=CAPPED_BYTES)
        for name, allocator in ALLOCATORS.items():
            got = int(torch.run("fill", share="a", allocator=allocator)(SECONDS)[-1]["bytes"])
            found[name] = got
            if not CAPPED_BYTES / 2 <= got <= CAPPED_BYTES:
                raise WrongError(f"{name}: a job with {CAPPED_BYTES} bytes got {got}")
    return found


def beside(gpu: Gpu, opener: Opener, until: float) -> Found:
    """The latency of inference alone, and beside training with and without shares."""
    del until
    found: Found = {}
    for what, shares in (("alone", None), ("beside training, shared", True), ("beside training, no shares", False)):
        with opener(gpu) as torch:
            trained = None
            if shares:
                torch.share("serve", 300, latency=True)
            if shares is not None:
                trained = _begin(torch, "train", 700 if shares else 0)
            served = torch.run("serve", "--seconds", f"{SECONDS:g}", share="serve" if shares else "")(SECONDS)
            took = sorted(each["took"] for each in served)
            steps = None if trained is None else steps_of(trained(SECONDS + LEAD_SECONDS))
        if not took:
            raise WrongError("nothing was served")
        found[what] = {"p50_ms": _ms(took, 0.5), "p99_ms": _ms(took, 0.99), "requests": len(took)}
        if steps is not None:
            found[what]["training_steps"] = steps.done[-1]
    return found


def overhead(gpu: Gpu, opener: Opener, until: float) -> Found:
    """The steps of one job with the hook and without, in turn."""
    del until
    rates: dict[str, list[float]] = {"off": [], "on": []}
    with opener(gpu) as torch:
        torch.share("a", 1000)
        for _ in range(2):
            for name in rates:
                job = torch.run("steps", "--seconds", f"{SECONDS:g}", share="a" if name == "on" else "")
                steps = steps_of(job(SECONDS))
                rates[name].append((steps.done[-1] - steps.done[0]) / (steps.at[-1] - steps.at[0]))
    off, on = max(rates["off"]), max(rates["on"])
    lost = 1.0 - on / off
    if lost > SLOWER_MAX:
        raise WrongError(f"a job does {lost:.1%} fewer steps under the hook, more than {SLOWER_MAX:.0%}")
    return {"steps_per_second": {"hook off": round(off, 2), "hook on": round(on, 2)}, "lost": round(lost, 4)}


TORCH_PARTS: Mapping[str, Callable[[Gpu, Opener, float], Found]] = {
    "torch-identical": identical,
    "torch-split": split,
    "torch-memory": capped,
    "torch-beside": beside,
    "torch-overhead": overhead,
}


def _begin(torch: Any, name: str, request: int, times: int = 1) -> Callable[[float], list[Line]]:
    """A job of equal steps; `request` 0: without a share."""
    if request:
        torch.share(name, request)
    began: Callable[[float], list[Line]] = torch.run(
        "steps", "--seconds", f"{times * SECONDS + LEAD_SECONDS:g}", share=name if request else ""
    )
    return began


def _ms(ordered: Sequence[float], part: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))] * 1000, 2)
