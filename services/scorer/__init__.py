"""How fast is each GPU, for which class of job: as a profile says; whoever is not in it counts as typical, 1.0.

Hears: NodeSampled.
Says:  GpusScored.
Owns:  gpu_scores.
"""
