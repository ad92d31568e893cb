"""Signing in with an identity provider that speaks OpenID Connect."""
