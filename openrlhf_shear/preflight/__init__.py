"""Checks of a command line and of the machine, before anything starts."""
