"""What jobs held of which GPUs, what of it was lost, and what it costs: from the stored events. Exact: whole numbers of
thousandths of a GPU times microseconds throughout. Pure."""
