"""GPU time that jobs held, its lost part, and its cost, computed from the stored events. Exact: whole numbers of
thousandths of a GPU times microseconds throughout. Pure."""
