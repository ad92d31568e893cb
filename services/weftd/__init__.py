"""One folder per process. They talk over the bus and never import each other."""
