"""Rules from outside the package, to copy; installed with it as `openrlhf_shear_examples`."""
