"""A whole cluster on this machine: its servers, its services as processes, in one home folder.

`weft up`, `weft demo`, the tests and the benchmark use it through `LocalCluster`:

    async with running(home, Options(nodes=2, emulated_gpus=4)) as cluster:
        ...  # cluster.url, cluster.token

Errors: LocalError
        ├── AlreadyRunsError    another process runs the cluster of this home; `state` has its address
        └── StartFailedError    a service or server did not come up; names it, with the last lines of its log
"""

from weftd.cli.local.cluster import LocalCluster, running
from weftd.cli.local.errors import AlreadyRunsError, LocalError, StartFailedError
from weftd.cli.local.home import ClusterHome, ClusterState
from weftd.cli.local.options import Options

__all__ = [
    "AlreadyRunsError",
    "ClusterHome",
    "ClusterState",
    "LocalCluster",
    "LocalError",
    "Options",
    "StartFailedError",
    "running",
]
