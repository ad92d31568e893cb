"""Nouns and laws: what a job, a node and a GPU are, and which steps are legal. Pure."""
