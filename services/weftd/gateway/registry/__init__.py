"""The images of tenants: in a registry that only gateways reach, which let each tenant in (docs/images.md)."""
