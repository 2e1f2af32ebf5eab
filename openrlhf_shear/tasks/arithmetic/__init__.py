"""Built-in tasks: problems, small policies and their warm-up, sampling, rewards."""
