"""`python -m tests.bench partition`: elastic jobs under partition planners, against static sizes and each other."""
