"""What a run may use at most, of CPU, memory and network: rounded, put in force, read back and changed."""
