"""What Weft is for, measured on this machine: `make bench`. Figures, never pass or fail: these machines are noisy."""
