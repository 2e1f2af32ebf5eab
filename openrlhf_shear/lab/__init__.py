"""The credit lab: any credit rule on a task with known first errors, without Ray or vLLM."""
