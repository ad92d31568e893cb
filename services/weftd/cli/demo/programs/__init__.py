"""The jobs of `weft demo`: plain Python 3, nothing but the standard library, no knowledge of Weft but its environment.

Each is also an example to copy: `weft run --gpus 1 -- python3 train.py`, in a container too. (`paced` is not: it stands
in for training where one wants to see GPUs turn slow.)
"""
