"""Prints how many threads PyTorch uses."""

import torch

print(f"threads {torch.get_num_threads()}", flush=True)
