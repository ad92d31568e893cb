"""Commands on jobs: submit, watch, list, change and end them."""
