"""Start and end of a run: Ray, the screen, signals, restarts, exit codes."""
