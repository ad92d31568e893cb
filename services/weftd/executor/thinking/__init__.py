"""An executor's decisions and reports: pure, with time as an input."""
