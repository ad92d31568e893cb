"""Where a gang goes: each placement is one function in a file of its own, `(room, want, count, asked) -> picks`."""
