"""Samples and benchmarks of GPUs, and which samples are news: pure, with time as an input."""
