"""From the text of a job file to a checked specification, with a message for each mistake in it."""
