"""Sessions of people in this node's runs: shells, commands, and connections to the ports of a run.

What a runtime opens for one is in `channel.py` beside this folder. `session.py`: one session, with what waits on its
two ways. `sessions.py`: all of this node.
"""
