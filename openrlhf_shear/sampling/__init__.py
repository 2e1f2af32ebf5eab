"""Asking a model: benchmark questions, completions sampled, graded and kept; for evaluation and diagnosis alike."""
