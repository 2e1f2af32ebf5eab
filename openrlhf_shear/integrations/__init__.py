"""Credit rules in other trainers: `trl` and `verl`, each a thin layer over `credit/`."""
