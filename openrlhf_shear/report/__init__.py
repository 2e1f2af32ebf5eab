"""Shared parts of every reporting tool: estimates with intervals, tables, figures, findings, pages."""
