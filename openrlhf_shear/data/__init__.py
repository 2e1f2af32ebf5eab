"""Preparation and reading of data sets for training."""
