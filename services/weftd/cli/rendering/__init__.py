"""Tables and bars of jobs, nodes, events and the whole cluster, drawn from views. Pure."""
