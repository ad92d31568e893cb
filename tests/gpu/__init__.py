"""Tests that only real hardware can pass, in some minutes: `python -m tests.gpu`. `make gpu-kit` packs it for a machine
without a package index."""
