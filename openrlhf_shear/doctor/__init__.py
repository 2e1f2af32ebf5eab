"""Small checks of a machine, each with a finding and a remedy. None starts Ray or imports vLLM."""
