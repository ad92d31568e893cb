"""The typed client of the gateway: the command line, the demo and the tests speak through it.

Every wait is bounded. What can be asked twice without harm is asked again while the gateway is away, for RETRY seconds.

Errors: ClientError
        ├── RefusedError       the gateway answered, and said no: `status`, `field`, `reason`
        └── UnreachableError   no answer in time: what was asked may have been done nevertheless
"""

from libs.client.client import Client, Gap
from libs.client.errors import ClientError, RefusedError, UnreachableError

__all__ = ["Client", "ClientError", "Gap", "RefusedError", "UnreachableError"]
