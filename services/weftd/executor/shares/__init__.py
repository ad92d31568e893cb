"""How this node holds runs to their shares of a GPU. `backend.py` has the Protocol; a node has one back-end."""
