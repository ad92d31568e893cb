"""Trains a model whose layers have a device map with accelerate, as `device_map="auto"` makes one on two GPUs."""

import sys

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
model.hf_device_map = {"0": 0, "1": 1}
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
accelerator.backward(model(torch.randn(2, 4)).sum())
optimizer.step()
sys.stdout.write(
    f"rank {accelerator.process_index} of {accelerator.num_processes} weights 0\n"
)  # in one piece: ranks share the pipe
