"""What a person sees of jobs, nodes, events and the whole cluster: views in, tables and bars out. Pure."""
