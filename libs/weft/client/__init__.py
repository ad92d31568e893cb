"""The typed client of the gateway, used by the command line, the demo and the tests.

Every wait is bounded. A request that may safely be repeated is sent again while the gateway is away, for RETRY seconds.

Errors: ClientError
        ├── Refused        the gateway refused the request: `status`, `field`, `reason`
        └── Unreachable    no answer in time: the request may have had its effect nevertheless
"""

from weft.client.client import Client
from weft.client.errors import ClientError, Refused, Unreachable
from weft.client.logs import Gap

__all__ = ["Client", "ClientError", "Gap", "Refused", "Unreachable"]
