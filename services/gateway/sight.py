"""Whose jobs a caller may see."""

from libs.store.tenants import Access


def may_see(who: Access, tenant: str) -> bool:
    return who.admin or tenant == who.tenant
