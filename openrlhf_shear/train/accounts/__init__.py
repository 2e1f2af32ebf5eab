"""Accounts of rollouts, curves, dumps and benchmarks during training."""
