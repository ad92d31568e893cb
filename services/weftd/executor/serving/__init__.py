"""Runs that serve requests: where they listen, whether they take requests, and the news of both."""
