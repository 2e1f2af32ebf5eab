"""Backends of the span search, and the module that chooses among them."""
