"""What can run a job on this node: process, docker, and a fake. The Protocol is `Runtime` in runs.py; one conformance
suite holds all of them to it.
"""
