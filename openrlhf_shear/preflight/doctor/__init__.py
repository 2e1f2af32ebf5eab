"""What is wrong with a machine: small checks, each with what was seen and what to do; no Ray, and no import of vLLM."""
