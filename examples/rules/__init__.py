"""Rules from outside the package, to copy."""
