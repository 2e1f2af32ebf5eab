"""Rollouts: vLLM engines, the order of prompts, batches, the gap between engine and policy."""
