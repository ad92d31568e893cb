"""The PyTorch parts of a day on real hardware: what they make of the lines of their programs, without PyTorch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.gpu import torch_parts
from tests.gpu.found import SkippedError, WrongError
from tests.gpu.torch_parts import CAPPED_BYTES, Steps, points_off, resized_after, steps_of, torch_on, windows
from weft.domain.cluster import Gpu

GPU = Gpu(index=0, uuid="GPU-1", model="NVIDIA H200", memory=1 << 37)


def at_rates(*rates: tuple[float, float]) -> Steps:
    """Steps each tenth of a second. `rates`: seconds, and the steps a second in them."""
    at, done = [0.0], [0.0]
    for seconds, rate in rates:
        for _ in range(round(seconds * 10)):
            at.append(at[-1] + 0.1)
            done.append(done[-1] + rate / 10)
    return Steps(tuple(at), tuple(done))


def lines_of(steps: Steps) -> list[dict[str, float]]:
    return [{"at": at, "steps": done} for at, done in zip(steps.at, steps.done, strict=True)]


class FakeTorch:
    """Answers with lines that a test prepared, by program and share."""

    def __init__(self, told: dict[tuple[str, str], Sequence[dict[str, Any]]]) -> None:
        self.told = told
        self.shares: list[tuple[str, int]] = []

    def share(self, name: str, request: int, **more: object) -> None:
        del more
        self.shares.append((name, request))

    def sleep(self, seconds: float) -> None: ...

    def run(self, kind: str, *arguments: str, share: str = "", allocator: str = "") -> Callable[[float], Any]:
        del arguments, allocator
        return lambda seconds: self.told[kind, share]

    @contextmanager
    def on(self, gpu: Gpu) -> Iterator["FakeTorch"]:
        del gpu
        yield self


def test_parts_are_of_the_windows_in_which_both_jobs_ran_warm() -> None:
    one, other = at_rates((2.0, 1.0), (6.0, 70.0)), at_rates((2.0, 900.0), (4.0, 30.0))
    found = windows([one, other])
    assert (found[0][0], found[-1][0]) == (3.0, 5.75)
    assert points_off([parts for _, parts in found], (700, 300)) == pytest.approx(0.0, abs=1e-6)
    assert points_off([parts for _, parts in found], (650, 350)) == pytest.approx(5.0)


def test_jobs_that_did_not_run_together_or_said_too_little_are_wrong() -> None:
    with pytest.raises(WrongError, match="did not run together"):
        windows([at_rates((2.5, 1.0)), at_rates((2.5, 1.0))])
    with pytest.raises(WrongError, match="reported its steps 1 times"):
        steps_of([{"at": 1.0, "steps": 0}, {"took": 1.0}])


@pytest.mark.parametrize(("lasts", "after"), [(0.0, 0.0), (1.0, 1.0), (9.0, None)])
def test_when_a_resize_is_felt(lasts: float, after: float | None) -> None:
    late = 10.0 - lasts
    jobs = [at_rates((4.0 + lasts, 70.0), (late, 30.0)), at_rates((4.0 + lasts, 30.0), (late, 70.0))]
    if lasts == 9.0:
        jobs = [at_rates((14.0, 70.0)), at_rates((14.0, 30.0))]
    assert resized_after(jobs, (300, 700), 4.0) == after


def test_the_shares_of_two_jobs_may_be_two_points_off() -> None:
    def found(first: float) -> None:
        steps = {"a": at_rates((20.0, first)), "b": at_rates((20.0, 100.0 - first))}
        fake = FakeTorch({("steps", name): lines_of(each) for name, each in steps.items()})
        torch_parts.split(GPU, fake.on, 0.0)

    with pytest.raises(WrongError, match=r"shares \(700, 300\) are off by 3.0 points"):
        found(67.0)
    with pytest.raises(WrongError, match=r"shares \(500, 500\) are off by 19.0 points"):
        found(69.0)


@pytest.mark.parametrize(("got", "why"), [(CAPPED_BYTES, ""), (CAPPED_BYTES + 1, "got"), (CAPPED_BYTES // 4, "got")])
def test_a_job_gets_its_memory_and_no_more(got: int, why: str) -> None:
    fake = FakeTorch({("fill", "a"): [{"bytes": got}]})
    if not why:
        assert torch_parts.capped(GPU, fake.on, 0.0) == {"caching": got, "async": got}
        return
    with pytest.raises(WrongError, match=why):
        torch_parts.capped(GPU, fake.on, 0.0)


def test_weights_that_differ_under_the_hook_are_wrong() -> None:
    same = FakeTorch({("train", ""): [{"digest": "d"}], ("train", "a"): [{"digest": "d"}]})
    assert list(torch_parts.identical(GPU, same.on, float("inf"))) == [
        "caching",
        "caching and graphs",
        "async",
        "async and graphs",
    ]
    other = FakeTorch({("train", ""): [{"digest": "d"}], ("train", "a"): [{"digest": "e"}]})
    with pytest.raises(WrongError, match="caching: the weights differ under the hook"):
        torch_parts.identical(GPU, other.on, float("inf"))


def test_what_the_hook_costs_and_inference_beside_training_are_told() -> None:
    told = {("steps", ""): lines_of(at_rates((5.0, 100.0))), ("steps", "a"): lines_of(at_rates((5.0, 98.0)))}
    assert torch_parts.overhead(GPU, FakeTorch(told).on, 0.0)["lost"] == 0.02
    told["steps", "a"] = lines_of(at_rates((5.0, 96.0)))
    with pytest.raises(WrongError, match=r"4.0% fewer steps under the hook, more than 3%"):
        torch_parts.overhead(GPU, FakeTorch(told).on, 0.0)
    served = [{"took": 0.001}] * 98 + [{"took": 0.5}] * 2
    fake = FakeTorch({**told, ("steps", "train"): told["steps", ""], ("serve", ""): served, ("serve", "serve"): served})
    found = torch_parts.beside(GPU, fake.on, 0.0)
    assert found["alone"] == {"p50_ms": 1.0, "p99_ms": 500.0, "requests": 100}
    assert found["beside training, shared"]["training_steps"] == 500.0
    assert fake.shares == [("serve", 300), ("train", 700)]


def test_without_pytorch_with_cuda_the_parts_are_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for code, why in (("raise ImportError", "PyTorch cannot be imported"), ("raise SystemExit(3)", "sees no CUDA")):
        monkeypatch.setattr(torch_parts, "_PROBE", code)
        with pytest.raises(SkippedError, match=why), torch_on(GPU):
            pass
