"""What services share. Nothing here imports a service."""
