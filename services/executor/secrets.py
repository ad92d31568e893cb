"""The values of a run's secrets: asked of a gateway as the run starts, put into its environment, kept nowhere else."""

from msgspec import structs

from libs.bus import Bus, BusError
from libs.messages.nodes import ReadSecrets, SecretsRead, StartRun
from services.executor.runs import RuntimeUnavailableError

ANSWER_SECONDS_MAX = 3.0


class MissingSecretsError(Exception):
    """The run names secrets of which nothing is stored."""


async def with_secrets(order: StartRun, bus: Bus, *, node_id: str) -> StartRun:
    """The order with the values in its environment. Raises MissingSecretsError; RuntimeUnavailableError if no gateway
    gives them now, so that the start is tried again."""
    asked = ReadSecrets(node_id=node_id, job_id=order.job_id, epoch=order.epoch, rank=order.rank)
    try:
        read = await bus.request(asked, SecretsRead, seconds_max=ANSWER_SECONDS_MAX)
    except BusError as error:
        raise RuntimeUnavailableError(f"no gateway gives its secrets: {error}") from error
    if read.refused:
        raise RuntimeUnavailableError(f"its secrets are not given: {read.refused}")
    missing = sorted(
        {*read.missing, *(name for variable, name in order.secrets.items() if variable not in read.values)}
    )
    if missing:
        raise MissingSecretsError(f"no such {'secret' if len(missing) == 1 else 'secrets'}: {', '.join(missing)}")
    return structs.replace(order, env={**order.env, **{name: read.values[name] for name in order.secrets}})
