"""What samples become of what was read, and whose run used what: pure, with time as an input."""
