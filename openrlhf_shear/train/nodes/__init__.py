"""The machines of a run: its Ray, joining a cluster, workers, checks of every node."""
