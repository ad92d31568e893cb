"""A laboratory of hosts: several Docker engines on this machine, each as if on a host of its own (docs/hosts.md)."""
