"""Evaluation: benchmark scores (avg@k, pass@k, maj@k), summaries of training runs, and comparisons of runs."""
