"""The source tree, for programs that tests start with an environment of their own."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join(str(folder) for folder in (ROOT, ROOT / "libs", ROOT / "services"))
