"""One step of DistributedDataParallel, for torchrun. With `--save SECONDS` each worker saves for so long on SIGTERM."""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--save", type=float, metavar="SECONDS")
args = parser.parse_args()


def save(*_):
    print("saving", flush=True)
    time.sleep(args.save)
    print(f"saved rank {os.environ['RANK']}", flush=True)
    sys.exit(0)


dist.init_process_group("gloo")
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1)).backward()
total = sum(float(part.grad.sum()) for part in model.parameters())
sys.stdout.write(
    f"rank {dist.get_rank()} of {dist.get_world_size()} weights {total:.6f}\n"
)  # in one piece: ranks share the pipe
if args.save is not None:
    signal.signal(signal.SIGTERM, save)
    print("steps", flush=True)
    while True:
        time.sleep(0.1)
dist.barrier()
dist.destroy_process_group()
