"""What is told outside: to which addresses, signed how, tried again when, and a job's story as spans. Pure."""
