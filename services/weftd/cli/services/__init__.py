"""Commands on services and notebooks."""
