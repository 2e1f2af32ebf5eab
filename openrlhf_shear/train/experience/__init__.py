"""From rollouts to experiences: log-probs, hidden states, credit, advantages."""
