"""Images of tenants, in a registry that only gateways reach (docs/images.md)."""
