"""`weft batch`: the requests of a file, asked of a model at low priority, and their answers in another file."""
