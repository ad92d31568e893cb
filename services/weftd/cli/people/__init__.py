"""The people who use a cluster from this machine: signing in, and the contexts in `~/.config/weft/config.toml`."""
