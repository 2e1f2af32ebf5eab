"""Data sets made ready for training."""
