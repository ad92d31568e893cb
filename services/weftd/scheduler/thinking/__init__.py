"""What a scheduler decides, and from what: pure, with time and randomness as inputs."""
