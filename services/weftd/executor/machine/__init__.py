"""The node itself: its capacity, boot, environment, ports, volumes and limits."""
