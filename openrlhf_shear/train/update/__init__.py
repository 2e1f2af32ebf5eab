"""Optimizer steps: actor, critic, strategy, adapters, metrics."""
