"""What runs inside the containers: training in NumPy over TCP, and single programs that are short of one thing each."""
