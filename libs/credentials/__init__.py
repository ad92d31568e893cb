"""The secrets of one cluster, a file each, and what every NATS user may say and hear."""

from libs.credentials.folder import Credentials, CredentialsError, provision
from libs.credentials.permissions import Permissions, inbox_prefix, permissions_by_user

__all__ = ["Credentials", "CredentialsError", "Permissions", "inbox_prefix", "permissions_by_user", "provision"]
