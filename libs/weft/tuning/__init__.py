"""What holds a running job back, and what to change about it: windows, verdicts, trials (NEARCHUS, NOMS'24). Pure."""
