"""What a router decides: where a request goes, when, and which replica gets it. Pure."""
