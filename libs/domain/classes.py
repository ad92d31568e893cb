"""Classes of jobs by how much the speed of their GPU matters to them (PAL, SC'24), called by what holds each back."""

from libs.domain.spec import JobSpec

JOB_CLASSES = ("compute", "mixed", "memory")
"""The most sensitive first: what is bound by computing feels every difference between GPUs."""

CLASS_LABEL = "weft/class"


def class_of(spec: JobSpec) -> str:
    """What its label says; who says nothing, or what is no class, counts as most sensitive (PAL's rule)."""
    said = spec.labels.get(CLASS_LABEL, "")
    return said if said in JOB_CLASSES else JOB_CLASSES[0]


def unknown_class(spec: JobSpec) -> str:
    """The class that its label names and that is none; else nothing."""
    said = spec.labels.get(CLASS_LABEL, "")
    return "" if said in JOB_CLASSES else said
