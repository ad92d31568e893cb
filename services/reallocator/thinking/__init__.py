"""What a reallocator asks for, and why: pure, with time as an input."""
