"""The command line, `weft`: a person's commands to a cluster, and the tables and lines that show it.

Takes   the gateway's answers over HTTP
Sends   users' requests over HTTP
Owns    nothing

`__main__` picks the command; each command is in the module of its name or family, which is imported only when it is
run. `rendering` turns views into tables and bars without I/O, so a test can read what a person would see.
"""
