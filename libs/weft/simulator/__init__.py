"""The simulator: traces in, decisions of the production planning on a model of a cluster, reports out. No clock."""
