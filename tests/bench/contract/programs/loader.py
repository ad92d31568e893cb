"""Trains from a DataLoader with two workers until it gets SIGTERM; then it saves its step, which takes a while.

A later try begins at the saved step. `--steps`: where it ends. `--save`: seconds of the saving.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--save", type=float, default=2.0)
args = parser.parse_args()
kept = Path(os.environ["WEFT_CHECKPOINT_DIR"]) / "step"
stopping = False


class Rows(Dataset):
    def __len__(self):
        return args.steps

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.tensor([float(index)])


def stop(*_):
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)
step = int(kept.read_text()) if kept.exists() else 0
print(f"begins at step {step}", flush=True)
for _ in DataLoader(Rows(), batch_size=1, num_workers=2):
    step += 1
    if step % 10 == 0:
        print(f"steps {step}", flush=True)
    if step >= args.steps:
        print("finished", flush=True)
        sys.exit(0)
    if stopping:
        print("saving", flush=True)
        time.sleep(args.save)
        kept.write_text(str(step))
        print(f"saved step {step}", flush=True)
        sys.exit(0)
