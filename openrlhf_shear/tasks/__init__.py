"""Built-in tasks on which the first error of every rollout is known."""
