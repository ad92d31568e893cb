"""The HTTP API: one module for the handlers of each noun; `operations/` lists the routes with their documentation."""
