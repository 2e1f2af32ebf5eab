"""Data the fork trains on: the built-in arithmetic task and its small model."""
