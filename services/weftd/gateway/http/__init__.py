"""HTTP below the routes: how a handler is called, bodies are received, answers are validated and described."""
