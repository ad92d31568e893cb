"""The decisions of a scheduler: pure, with time and randomness as inputs."""
