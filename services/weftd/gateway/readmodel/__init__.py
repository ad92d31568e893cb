"""Read models of the API, built from the store and from the reports of nodes: cluster, jobs, queue, estimates."""
