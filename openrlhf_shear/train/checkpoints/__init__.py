"""Checkpoints: their folders and contents, the fingerprint of a run, what a resume may change."""
