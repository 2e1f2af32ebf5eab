"""The record of a rollout and its table on disk, its tokens, answer and first error, and the page that shows it."""
