"""HTTP below the routes: calls of handlers, request bodies, conditional answers and the OpenAPI document."""
