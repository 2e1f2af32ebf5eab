"""Sampling of a model on benchmark questions: completions drawn, graded and stored, for evaluation and diagnosis."""
