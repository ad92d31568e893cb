"""The control groups of runs: made, limited, read back and removed."""
