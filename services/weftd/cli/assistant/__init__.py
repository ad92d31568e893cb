"""An MCP server for assistants: its protocol, and the tools that it offers."""
