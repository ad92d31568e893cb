"""When a waiting job starts and a running one ends, and what would let it start sooner."""
