"""The data of jobs in object stores: copied to this node by rclone before a run starts, and kept in a cache."""
