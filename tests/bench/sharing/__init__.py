"""`python -m tests.bench sharing`: jobs that share one emulated GPU, under the real hook and the real arbiter."""
