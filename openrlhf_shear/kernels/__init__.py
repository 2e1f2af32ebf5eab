"""What runs the span search, and the one place that decides it."""
