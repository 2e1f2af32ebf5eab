"""Start and end of a run: launch, signals, restarts."""
