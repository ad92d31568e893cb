"""Every operation of the API, in one table: the server serves it, and the documentation is generated from it."""

from typing import Any

from weftd.gateway.operations.about import ABOUT
from weftd.gateway.operations.arrays import ARRAYS
from weftd.gateway.operations.cluster import CLUSTER
from weftd.gateway.operations.jobs import JOBS
from weftd.gateway.operations.services import SERVICES
from weftd.gateway.operations.tenants import TENANTS
from weftd.gateway.route import Route

OPERATIONS: tuple[Route[Any], ...] = (*JOBS, *ARRAYS, *SERVICES, *CLUSTER, *TENANTS, *ABOUT)
