"""The command line, `weft`: what a person says to a cluster and what they see of it.

Hears   the gateway's answers over HTTP
Says    what users ask, over HTTP
Owns    nothing

`__main__` picks the command; each command is in the module of its name or family, which is imported only when it is
asked for. `drawing` turns views into tables and bars and knows no I/O, so a test can read what a person would see.
"""
