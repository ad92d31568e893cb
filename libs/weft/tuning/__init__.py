"""The bottleneck of a running job, and the change that helps: windows, verdicts, trials (NEARCHUS, NOMS'24). Pure."""
