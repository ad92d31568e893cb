"""How fast each GPU is, for which class of job: learnt from the jobs that run on them, from benchmarks and a profile.

Hears: NodeSampled and ProgressSeen of its own nodes; PacesSeen and ScorerPresent of the other scorers.
Says:  GpusScored, ClassesLearnt; PacesSeen and ScorerPresent.
Owns:  gpu_scores, workload_classes, curves.
"""
