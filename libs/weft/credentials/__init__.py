"""The secrets of one cluster, a file each, and the permissions of every NATS user."""

from weft.credentials.folder import Credentials, CredentialsError, provision, put_portable
from weft.credentials.permissions import Permissions, inbox_prefix, permissions_by_user

__all__ = [
    "Credentials",
    "CredentialsError",
    "Permissions",
    "inbox_prefix",
    "permissions_by_user",
    "provision",
    "put_portable",
]
