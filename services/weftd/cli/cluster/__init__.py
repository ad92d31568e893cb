"""Commands on nodes and GPUs."""
