"""What a run tells: typed events, the screen, the log, and how a run ends."""
