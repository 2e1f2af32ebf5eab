"""The credit lab: any credit rule on a task whose every first error is known, without Ray or vLLM."""
