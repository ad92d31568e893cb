"""The decisions of a router: where a request goes, when, and which replica gets it. Pure."""
