"""People: how they sign in, which roles they have, and the audit log of what was done."""
