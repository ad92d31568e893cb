"""What runs write: copied from the engine, read as lines, kept for a while and deleted."""
