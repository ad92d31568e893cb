"""Data-parallel training with PyTorch and torchrun, which saves when it is stopped and goes on from there.

weft run --venv --replicas 2 --gpus 1 --checkpoints stop -- torchrun examples/ddp.py
"""

import sys

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import weft
from weft.integrations.torch import load, save, should_stop

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300


def main() -> None:
    should_stop()  # from here on, SIGTERM no longer ends the process
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(1)
    inputs, targets = torch.randn(64, 4), torch.randn(64, 1)
    inner = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.01)
    first = 0
    if (state := load()) is not None:
        first = state["step"]
        inner.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        print(f"rank {rank} resumes at step {first}", flush=True)
    model = DistributedDataParallel(inner)
    for step in range(first + 1, STEPS + 1):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[rank::size]), targets[rank::size])
        loss.backward()
        optimizer.step()
        if rank == 0:
            weft.step(step, of=STEPS, loss=loss.item())
        stop = should_stop()
        if stop or step % 100 == 0:
            save({"step": step, "model": inner.state_dict(), "optimizer": optimizer.state_dict()})
        if stop:
            sys.exit("stopped: the next try resumes from the checkpoint")
    print(f"rank {rank} of {size}: {STEPS} steps", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
