"""Diagnosis of the span distance: `run` makes tables, `analyses` read them, `pictures` and `findings` show results."""
