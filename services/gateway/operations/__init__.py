"""Every operation of the API, in one table: the server serves it, and the documentation is generated from it."""

from typing import Any

from services.gateway.operations.about import ABOUT
from services.gateway.operations.arrays import ARRAYS
from services.gateway.operations.cluster import CLUSTER
from services.gateway.operations.jobs import JOBS
from services.gateway.operations.services import SERVICES
from services.gateway.operations.tenants import TENANTS
from services.gateway.route import Route

OPERATIONS: tuple[Route[Any], ...] = (*JOBS, *ARRAYS, *SERVICES, *CLUSTER, *TENANTS, *ABOUT)
