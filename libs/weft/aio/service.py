"""Services: jobs that answer requests, for programs with an event loop."""

import asyncio
import os
from collections.abc import Sequence
from typing import Unpack, cast

from weft.aio.job import Job, connected
from weft.aio.submitting import submit
from weft.client import ClientError
from weft.client.failure import failure
from weft.client.job_fields import JobFields
from weft.client.place import PATIENT_SECONDS

LOOK_SECONDS = 0.5  # no event says that a replica is ready


class Service(Job[None]):
    """A job whose replicas answer requests behind one address."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers with which a request is let in; a service that is `public` needs none."""
        return {"Authorization": f"Bearer {self._place.token}"}

    async def ready(self, timeout: float | None = None, *, patience: float = PATIENT_SECONDS) -> str:
        """Wait until a replica takes requests, and return the URL of the service, which ends with `/`.

        Raises TimeoutError after `timeout` seconds, JobFailed if the service ends before, and ClientError if the
        cluster has no router.
        """
        try:
            async with asyncio.timeout(timeout), connected(self._place, patience) as client:
                while True:
                    found = await client.endpoints(self.id)
                    if not found.url:
                        raise ClientError("this cluster has no router: GATEWAY_ROUTER_URL is not set at its gateway")
                    if any(each.ready for each in found.endpoints):
                        return found.url
                    self._view = await client.job(self.id)
                    if self._view.state.final:
                        raise await failure(client, self._view)
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"{self.name} ({self.id}) takes no requests after {timeout:g} s, and goes on") from None


async def serve(
    command: str | Sequence[str],
    /,
    *,
    ready: str | None = None,
    port: int | None = None,
    key: str | None = None,
    sync: str | os.PathLike[str] | None = None,
    venv: bool = False,
    **fields: Unpack[JobFields],
) -> Service:
    """Submit a service that runs this command, and return at once; all else is as of `submit`.

    A replica listens at the port of its variable WEFT_PORT; `port`: that of a container. `ready`: the path that a
    replica answers with 200 once it takes requests; without it, once its port takes a connection. `replicas`: such as
    `{"min": 0, "want": 1, "max": 4}`; with an `objective` their number follows the load (docs/serving.md).
    """
    rules = {
        **fields.get("service", {}),
        **{name: value for name, value in (("ready", ready), ("port", port)) if value},
    }
    asked = cast(JobFields, {"kind": "inference", **fields, "service": rules})
    job = await submit({"command": command}, key=key, sync=sync, venv=venv, **asked)
    return Service(job._place, job.id, job.name, notes=job.notes)
