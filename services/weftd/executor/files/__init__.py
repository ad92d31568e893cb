"""Files of runs on the node: folders, contexts, checkpoints and secrets, and how they are deleted."""
