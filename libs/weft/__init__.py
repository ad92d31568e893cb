"""Weft shares a cluster of GPUs among jobs. This is its Python interface.

    async with weft.Client(url, token) as client:
        job = await client.submit(b'{"name": "train", "command": ["python", "train.py"]}')

The names in `__all__` are public, every other module is private. A name is imported when it is first used, so that
`import weft` costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.client import Client, ClientError, Gap, Refused, Unreachable

    __version__: str

__all__ = ["Client", "ClientError", "Gap", "Refused", "Unreachable", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from weft.version import version

        return version()
    if name in __all__:
        from weft import client

        return getattr(client, name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
