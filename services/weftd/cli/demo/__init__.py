"""`weft demo`, the main job: real work on an embedded cluster, checked, shown, and cleaned up after.

`parts` defines the jobs, `script` plays them through `weft.client`, `checks` judges what they left
behind, `board` and `show` are what a person sees of it, `command` puts it together.
"""

from weftd.cli.demo.command import add

__all__ = ["add"]
