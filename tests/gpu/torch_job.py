"""The PyTorch programs of a day on real hardware: `python -m tests.gpu.torch_job KIND`. Each prints lines of JSON.

train   trains a small model for some steps from a fixed seed; the last line has the digest of its weights
steps   does equal steps until its time is over, and prints how many it has done
serve   does a small step every 20 ms, and prints how long each took
fill    takes memory until there is no more, and prints how many bytes it got
"""

import argparse
import hashlib
import json
import sys
import time
from typing import Any

SIZE, BATCH = 1024, 256
PRINTED_SECONDS, SERVED_SECONDS, BLOCK_BYTES, BLOCKS_MAX = 0.05, 0.02, 64 << 20, 1 << 14


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.torch_job", description=__doc__)
    parser.add_argument("kind", choices=("train", "steps", "serve", "fill"), help="the program")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration, default 10")
    parser.add_argument("--steps", type=int, default=50, help="steps of `train`, default 50")
    parser.add_argument("--graph", action="store_true", help="`train` replays a CUDA graph")
    asked = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        return 3
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    if asked.kind == "train":
        _say(digest=_trained(torch, asked.steps, graph=asked.graph))
    elif asked.kind == "steps":
        _steps(torch, asked.seconds)
    elif asked.kind == "serve":
        _serve(torch, asked.seconds)
    else:
        _say(bytes=_filled(torch))
    return 0


def _say(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _trained(torch: Any, steps: int, *, graph: bool) -> str:
    layers = [torch.nn.Linear(SIZE, SIZE), torch.nn.ReLU(), torch.nn.Linear(SIZE, SIZE)]
    model = torch.nn.Sequential(*layers).cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(BATCH, SIZE, device="cuda")

    def step() -> None:
        optimiser.zero_grad(set_to_none=False)
        model(batch).square().mean().backward()
        optimiser.step()

    if graph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            step()
        for _ in range(steps):
            recorded.replay()
    else:
        for number in range(steps):
            step()
            del number
            torch.empty(BATCH * SIZE, device="cuda").fill_(1.0)  # the allocator takes and returns memory
    torch.cuda.synchronize()
    found = hashlib.sha256()
    for each in model.parameters():
        found.update(each.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def _steps(torch: Any, seconds: float) -> None:
    one, other = (torch.randn(4 * SIZE, 4 * SIZE, device="cuda") for _ in range(2))
    out, done, ends, printed = torch.empty_like(one), 0, time.monotonic() + seconds, 0.0
    torch.cuda.synchronize()
    while (now := time.monotonic()) < ends:
        if now - printed >= PRINTED_SECONDS:
            _say(at=now, steps=done)
            printed = now
        torch.mm(one, other, out=out)
        torch.cuda.synchronize()
        done += 1


def _serve(torch: Any, seconds: float) -> None:
    one, other = (torch.randn(SIZE, SIZE, device="cuda") for _ in range(2))
    out, ends = torch.empty_like(one), time.monotonic() + seconds
    for _ in range(10):
        torch.mm(one, other, out=out)
    torch.cuda.synchronize()
    while (began := time.monotonic()) < ends:
        torch.mm(one, other, out=out)
        torch.cuda.synchronize()
        _say(took=time.monotonic() - began)
        time.sleep(SERVED_SECONDS)


def _filled(torch: Any) -> int:
    blocks: list[Any] = []
    try:
        while len(blocks) < BLOCKS_MAX:
            blocks.append(torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        pass
    return len(blocks) * BLOCK_BYTES


if __name__ == "__main__":
    sys.exit(main())
