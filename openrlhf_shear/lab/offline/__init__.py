"""Placement of credit on responses that others wrote, whose first wrong step is marked."""
