"""`python -m tests.bench kinds`: adaptive jobs on GPUs of three models, by Weft's planner and by Sia's rule."""
