"""How fast is each GPU, for which class of job. In this version every GPU scores 1.0, the typical speed.

Hears: NodeSampled.
Says:  GpusScored.
Owns:  gpu_scores.
"""
