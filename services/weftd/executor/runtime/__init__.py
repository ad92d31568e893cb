"""The runtimes of a node: process, docker, and a fake. Their Protocol is `Runtime` in runs.py; one conformance suite
tests all of them.
"""
