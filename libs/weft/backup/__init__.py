"""A backup of a cluster: one file with every row of the database and the credentials, and its restore.

The file is a ZIP archive: `tables/NAME` in the text format of Postgres' COPY, ordered by primary key;
`credentials/NAME`; and at its end `manifest.json`, with the number of rows and the SHA-256 of each. With a key the
archive is encrypted (`encryption.py`). Memory stays bounded: everything is read and written in pieces.

Errors: BackupError, in one sentence for a person
"""

from weft.backup.archive import Backup, BackupError, Manifest, Table, opened, written
from weft.backup.database import restore, save

__all__ = ["Backup", "BackupError", "Manifest", "Table", "opened", "restore", "save", "written"]
