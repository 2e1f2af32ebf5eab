"""SHEAR where people already train: `trl` and `verl`, each a thin layer over `credit/`."""
