"""Tenants: the use of each against its limits."""

from collections.abc import Sequence

from rich.table import Table

from weft.domain.quantity import size_text
from weft.messages.http import TenantView
from weftd.cli.drawing.look import Look, plain, table
from weftd.cli.words import ago


def tenant_table(tenants: Sequence[TenantView], look: Look) -> Table:
    """One line per tenant; a limit that an administrator has set has a star."""
    made = table("TENANT", "JOBS", "SPECIFICATIONS", "PRIORITY", "UNPREEMPTIBLE", "CREATED", look=look)
    for tenant in tenants:
        jobs = f"{tenant.jobs_open} of {tenant.jobs_open_max}"
        specs = f"{size_text(tenant.spec_bytes)} of {size_text(tenant.spec_bytes_max)}"
        made.add_row(
            plain(tenant.id, "bold"),
            jobs + _star(tenant, "jobs_open_max"),
            specs + _star(tenant, "spec_bytes_max"),
            f"to {tenant.priority_max}" + _star(tenant, "priority_max"),
            ("yes" if tenant.may_be_unpreemptible else "no") + _star(tenant, "may_be_unpreemptible"),
            ago(look.now - tenant.created_at),
        )
    return made


def _star(tenant: TenantView, limit: str) -> str:
    return " *" if limit in tenant.chosen else ""
