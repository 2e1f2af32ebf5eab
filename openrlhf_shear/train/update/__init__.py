"""Optimizer steps: actor, critic, strategy, metrics, checkpoints."""
