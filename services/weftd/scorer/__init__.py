"""Scores each GPU for each class of jobs, from the steps of the jobs on it, from benchmarks and from a profile.

Takes: NodeSampled and ProgressSeen of its own nodes; PacesSeen and ScorerPresent of the other scorers.
Sends: GpusScored, ClassesLearnt; PacesSeen and ScorerPresent; SpeedsMeasured; ServiceReported.
Owns:  gpu_scores, workload_classes, curves, class_slowdowns, workload_penalties.
"""
