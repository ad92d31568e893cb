"""Sessions of people in this node's runs: shells, commands, and connections to the ports of a run.

`channel.py`: what a runtime opens. `session.py`: one session, with its windows. `sessions.py`: all of this node.
"""
