"""`weft demo`, the main job: real work on an embedded cluster, checked, shown, and cleaned up after.

`parts` defines the jobs, `script` plays them through `weft.client`, `checks` judges their results, `board` and `show`
draw for a person, `command` combines all of it.
"""

from weftd.cli.demo.command import add

__all__ = ["add"]
