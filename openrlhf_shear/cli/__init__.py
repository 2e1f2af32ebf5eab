"""Thin entry points: parse, call, print."""
