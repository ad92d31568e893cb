"""Object stores, as a job names them: pure."""
