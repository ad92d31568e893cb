"""How GPUs of one model differ: profiles of measured scores, their bins, and the classes of jobs that feel it."""
