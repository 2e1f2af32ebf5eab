"""The built-in tasks, whole: problems, small policies and how they are warmed up, sampling, reward."""
