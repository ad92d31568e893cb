"""What an executor decides, and what it reports: pure, with time as an input."""
