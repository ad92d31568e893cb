"""What is sampled and measured of GPUs, and which of it is news: pure, with time as an input."""
